package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"ebb/internal/sandbox"
	"ebb/workflows"
)

// target is the version that the row "upgrade" upgrades to.
const target = "1.37.2"

// row is one piece of work that both tools do.
type row struct {
	name     string // for -rows
	work     string // what the table says
	on       shape
	nodes    []string                                       // to drain or to remove; empty = all
	peer     func(ctx context.Context, l *lab, r row) error // kubectl's way; nil = it has none
	kind     workflows.Kind                                 // Ebb's way
	parallel int                                            // scale.maxParallel
	ends     bool                                           // the cluster cannot be put back afterwards
}

// shape is a cluster: so many workers, and where its pods are.
type shape struct {
	name    string
	workers int
	apps    []sandbox.Workload
	home    string // all pods are on this node; empty = as many on each
}

var (
	// workload1 is ten Deployments with two pods on each of twelve nodes, half of
	// them with a budget of one pod and half with one of 20%, which is five.
	workload1 = shape{name: "w1", workers: 12, apps: budgeted(24)}
	// crowd is one node that is as full as a kubelet permits: 109 pods and kube-proxy.
	crowd = shape{name: "crowd", workers: 12, home: "w12", apps: []sandbox.Workload{{Name: "crowd", Replicas: 109, CPU: "50m", Spread: true}}}
	// ten is workload1 on ten nodes: again two pods of each Deployment on each.
	ten = shape{name: "ten", workers: 10, apps: budgeted(20)}
)

func budgeted(replicas int32) []sandbox.Workload {
	var apps []sandbox.Workload
	for i := range 5 {
		apps = append(apps,
			sandbox.Workload{Name: fmt.Sprintf("single-%d", i+1), Replicas: replicas, Spread: true, CPU: "100m", Budget: &sandbox.Budget{MaxUnavailable: "1"}},
			sandbox.Workload{Name: fmt.Sprintf("fifth-%d", i+1), Replicas: replicas, Spread: true, CPU: "100m", Budget: &sandbox.Budget{MaxUnavailable: "20%"}})
	}
	return apps
}

var (
	last      = []string{"w12"}
	lastThree = []string{"w10", "w11", "w12"}
)

var rows = []row{
	{name: "one", work: "drain one node", on: workload1, nodes: last, peer: drainInSequence, kind: workflows.KindDrain, parallel: 1},
	{name: "sequence", work: "drain three nodes in sequence", on: workload1, nodes: lastThree, peer: drainInSequence, kind: workflows.KindDrain, parallel: 1},
	{name: "commands", work: "drain three nodes, a kubectl drain for each", on: workload1, nodes: lastThree, peer: drainOneByOne, kind: workflows.KindDrain, parallel: 1},
	{name: "three", work: "drain three nodes at once", on: workload1, nodes: lastThree, peer: drainAtOnce, kind: workflows.KindDrain, parallel: 3},
	{name: "crowd", work: "drain a node of 110 pods, no budgets", on: crowd, nodes: last, peer: drainInSequence, kind: workflows.KindDrain, parallel: 1},
	{name: "scale-down", work: "scale down by three nodes at once", on: workload1, nodes: lastThree, peer: scaleDown, kind: workflows.KindScaleDown, parallel: 3, ends: true},
	{name: "upgrade", work: "upgrade a control plane and ten workers", on: ten, kind: workflows.KindUpgrade, parallel: 1, ends: true},
}

func rowNames() []string {
	var names []string
	for _, r := range rows {
		names = append(names, r.name)
	}
	return names
}

// choose finds rows by name, in the order of the table.
func choose(selected string) ([]row, error) {
	if selected == "" {
		return rows, nil
	}
	names := strings.Split(selected, ",")
	for _, name := range names {
		if !slices.Contains(rowNames(), name) {
			return nil, fmt.Errorf("there is no row %q, only %s", name, strings.Join(rowNames(), ", "))
		}
	}
	var chosen []row
	for _, r := range rows {
		if slices.Contains(names, r.name) {
			chosen = append(chosen, r)
		}
	}
	return chosen, nil
}
