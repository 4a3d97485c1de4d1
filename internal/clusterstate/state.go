// Package clusterstate is what Ebb writes down about a managed cluster in the
// cluster itself: its state, who holds it, and the marks on its nodes. It holds
// the rules of these records and no client; internal/lease reads and writes them.
package clusterstate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"ebb/internal/version"
)

// State is what a cluster is doing.
type State string

// States of a cluster.
const (
	Running    State = "Running"
	Scaling    State = "Scaling"
	Upgrading  State = "Upgrading"
	Draining   State = "Draining"
	Alert      State = "Alert"
	Recovering State = "Recovering"
)

// Where the lock lives: the Lease ebb-system/cluster.
const (
	Namespace = "ebb-system"
	LeaseName = "cluster"
)

// Labels and annotations of nodes that Ebb reads and writes.
const (
	// AnnotationCordonedBy is on a node that an operation has cordoned; its value is
	// the operation's ID. Whether the cordon is still the operation's, cluster.CordonedBy
	// tells.
	AnnotationCordonedBy = "ebb/cordoned-by"
	// AnnotationDraining is on a node that the operation which has cordoned it has begun to
	// drain; its value is the operation's ID. It stays until the cordon is taken back.
	// cluster.DrainedBy tells what it means.
	AnnotationDraining = "ebb/draining"
	// AnnotationUnfinished is on a node whose upgrade has left it cordoned, as its kubelet
	// did not live; its value is the operation ID.
	AnnotationUnfinished = "ebb/upgrade-unfinished"
	// AnnotationNodeVersion is the version that an upgrade finished on a node.
	AnnotationNodeVersion = "ebb/node-version"
	// LabelManualUpgrade with the value "true" is on a node that is upgraded by hand
	// and left out of upgrades.
	LabelManualUpgrade = "ebb/manual-upgrade"
)

// Record is what the Lease says of a cluster. A cluster without a Lease is
// Running and has no holder.
type Record struct {
	State   State           `json:"state"`
	Holder  string          `json:"holder,omitempty"` // operation ID; empty = free
	From    State           `json:"from,omitempty"`   // while held: the state it was taken from
	Target  version.Version `json:"target,omitempty"` // of an upgrade that is running or failed
	Version version.Version `json:"version,omitempty"`
	Message string          `json:"message,omitempty"` // why the cluster is in this state
	Engine  string          `json:"engine,omitempty"`  // the Temporal cluster and namespace that run the holder
	Run     string          `json:"run,omitempty"`     // Temporal's run ID of the holder; empty = it is not known

	// TakenOver names the dead operations whose place was taken and whose cordons
	// are not all taken back yet, separated by commas. Cleaned takes them out.
	TakenOver string `json:"takenOver,omitempty"`
	Last      string `json:"last,omitempty"` // the operation that gave the cluster back last

	Cleared string `json:"cleared,omitempty"` // who has cleared the cluster last, when, of what and why
}

// transitions lists the states each state may be left to.
var transitions = map[State][]State{
	Running:    {Scaling, Upgrading, Draining},
	Scaling:    {Running, Alert},
	Upgrading:  {Running, Alert},
	Draining:   {Running, Alert},
	Alert:      {Upgrading, Scaling, Draining, Recovering},
	Recovering: {Running, Alert},
}

// CheckTransition returns an error when a cluster cannot go from one state to the other.
func CheckTransition(from, to State) error {
	if !slices.Contains(transitions[from], to) {
		return fmt.Errorf("a cluster cannot go from %s to %s", from, to)
	}
	return nil
}

// Interrupted returns the state of a cluster whose holder died in the middle: what
// a drain leaves is whole, what a scale-down or an upgrade leaves may not be.
func (r Record) Interrupted() State {
	if r.State == Draining {
		return r.From
	}
	return Alert
}

// AddName returns a comma-separated list with a name added, once.
func AddName(list, name string) string {
	if list == "" || slices.Contains(Names(list), name) {
		return cmp.Or(list, name)
	}
	return list + "," + name
}

// RemoveNames returns a comma-separated list without the names in another one.
func RemoveNames(list, less string) string {
	gone := Names(less)
	return strings.Join(slices.DeleteFunc(Names(list), func(name string) bool { return slices.Contains(gone, name) }), ",")
}

// Names returns the names in a comma-separated list such as Record.TakenOver.
func Names(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}
