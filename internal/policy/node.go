// Package policy decides what an operation does to which node, in which order,
// and what it refuses. Everything in it is a pure function of what it is given.
package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"ebb/internal/natural"
	"ebb/internal/version"
)

// Role is what a node does in its cluster.
type Role string

// Roles of a node in an upgrade. The first control plane is the one that runs
// kubeadm upgrade apply.
const (
	FirstControlPlane Role = "first-control-plane"
	ControlPlane      Role = "control-plane"
	Worker            Role = "worker"
)

// Node is what a plan needs to know of one node of a cluster.
type Node struct {
	Name          string          `json:"name"`
	UID           string          `json:"uid"`
	Role          Role            `json:"role"`
	Version       version.Version `json:"version"`            // reported by the kubelet
	Recorded      version.Version `json:"recorded,omitempty"` // annotation ebb/node-version
	Ready         bool            `json:"ready"`
	Unschedulable bool            `json:"unschedulable,omitempty"`
	CordonedBy    string          `json:"cordonedBy,omitempty"` // the operation whose cordon it bears; empty = none, or the cordon is not Ebb's
	Unfinished    bool            `json:"unfinished,omitempty"` // an upgrade has drained it and left it cordoned, as its kubelet did not live
	Manual        bool            `json:"manual,omitempty"`     // label ebb/manual-upgrade=true: upgraded by hand, left out
	MachineID     string          `json:"machineID,omitempty"`
	ProviderID    string          `json:"providerID,omitempty"`
	Addresses     []string        `json:"addresses,omitempty"` // InternalIPs
	Created       time.Time       `json:"created"`
	Index         int             `json:"index"` // place among the cluster's nodes, oldest first
}

// Refusal is an operation that is not started, or a target that is not
// accepted. Its text says why and what to do.
type Refusal struct {
	Reason string
	Faults []string // what is wrong with nodes and the control plane, each with what to do
}

func (r *Refusal) Error() string {
	if len(r.Faults) == 0 {
		return r.Reason
	}
	return r.Reason + ": " + strings.Join(r.Faults, "; ")
}

func refuse(format string, args ...any) error { return &Refusal{Reason: fmt.Sprintf(format, args...)} }

// Sort puts nodes in their lasting order, control planes first and the oldest
// first within a role, makes the oldest control plane the first one, and
// numbers them.
func Sort(nodes []Node) []Node {
	sorted := slices.Clone(nodes)
	slices.SortFunc(sorted, func(a, b Node) int {
		return cmp.Or(
			cmp.Compare(rank(a), rank(b)),
			a.Created.Compare(b.Created),
			natural.Compare(a.Name, b.Name))
	})
	for i := range sorted {
		sorted[i].Index = i
		if sorted[i].Role != Worker {
			sorted[i].Role = ControlPlane
		}
	}
	if len(sorted) > 0 && sorted[0].Role == ControlPlane {
		sorted[0].Role = FirstControlPlane
	}
	return sorted
}

// ByName returns nodes as people look for them: control planes first, and by name
// within a role, w2 before w10. It is the order of lists; work is done in that of Sort.
func ByName(nodes []Node) []Node {
	sorted := slices.Clone(nodes)
	slices.SortFunc(sorted, func(a, b Node) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), natural.Compare(a.Name, b.Name))
	})
	return sorted
}

func rank(n Node) int {
	if n.Role == Worker {
		return 1
	}
	return 0
}

// Names lists the names of nodes in their order.
func Names(nodes []Node) []string {
	names := make([]string, len(nodes))
	for i, n := range nodes {
		names[i] = n.Name
	}
	return names
}

func filter(nodes []Node, keep func(Node) bool) []Node {
	var kept []Node
	for _, n := range nodes {
		if keep(n) {
			kept = append(kept, n)
		}
	}
	return kept
}

func list(nodes []Node) string { return strings.Join(Names(ByName(nodes)), ", ") }

// NextControlPlane is the control plane whose upgrade is to be done or retried
// next, of nodes that have work to do; "" when there is none.
func NextControlPlane(unfinished []Node) string {
	for _, n := range unfinished {
		if n.Role != Worker {
			return n.Name
		}
	}
	return ""
}

// ReadyControlPlanes returns the control planes that are Ready, but for one.
func ReadyControlPlanes(nodes []Node, except string) []Node {
	return filter(nodes, func(n Node) bool { return n.Role != Worker && n.Ready && n.Name != except })
}

// UnfitControlPlanes lists what keeps the control plane from doing without one of
// its nodes: what is wrong with the others. That the one itself is not healthy is
// no reason not to upgrade it, and cordons of the operation that asks (empty = none) are
// none: it has cordoned all that leave before it removes the first.
func UnfitControlPlanes(nodes []Node, except, operation string) (faults []string) {
	for _, n := range nodes {
		if n.Role == Worker || n.Name == except {
			continue
		}
		if !n.Ready {
			faults = append(faults, fmt.Sprintf("control plane %s is not Ready", n.Name))
		}
		if n.Unschedulable && (operation == "" || n.CordonedBy != operation) {
			faults = append(faults, fmt.Sprintf("control plane %s is cordoned", n.Name))
		}
	}
	return faults
}
