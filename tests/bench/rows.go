package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"ebb/internal/operation"
	"ebb/internal/sandbox"
)

// target is the version that the row "upgrade" upgrades to.
const target = "1.37.2"

// row is one piece of work that both tools do.
type row struct {
	name        string // for -rows
	work        string // what the table says
	cluster     clusterSpec
	nodes       []string                                           // to drain or to remove; empty = all
	runKubectl  func(ctx context.Context, l *cluster, r row) error // kubectl's way; nil = it has none
	kind        operation.Kind                                     // Ebb's way
	parallel    int                                                // scale.maxParallel
	destructive bool                                               // the cluster cannot be put back afterwards
}

// clusterSpec is the number of workers of a cluster, its workloads, and where they run.
type clusterSpec struct {
	name    string
	workers int
	apps    []sandbox.Workload
	node    string // all pods are on this node; empty = as many on each
}

var (
	// workload1 is ten Deployments with two pods on each of twelve nodes, half of
	// them with a budget of one pod and half with one of 20%, which is five.
	workload1 = clusterSpec{name: "w1", workers: 12, apps: workloadsWithBudgets(24)}
	// crowdedNode is one node that is as full as a kubelet permits: 109 pods and kube-proxy.
	crowdedNode = clusterSpec{name: "crowd", workers: 12, node: "w12", apps: []sandbox.Workload{{Name: "crowd", Replicas: 109, CPU: "50m", Spread: true}}}
	// tenWorkers is workload1 on ten nodes: again two pods of each Deployment on each.
	tenWorkers = clusterSpec{name: "ten", workers: 10, apps: workloadsWithBudgets(20)}
)

func workloadsWithBudgets(replicas int32) []sandbox.Workload {
	var apps []sandbox.Workload
	for i := range 5 {
		apps = append(apps,
			sandbox.Workload{Name: fmt.Sprintf("single-%d", i+1), Replicas: replicas, Spread: true, CPU: "100m", Budget: &sandbox.Budget{MaxUnavailable: "1"}},
			sandbox.Workload{Name: fmt.Sprintf("fifth-%d", i+1), Replicas: replicas, Spread: true, CPU: "100m", Budget: &sandbox.Budget{MaxUnavailable: "20%"}})
	}
	return apps
}

var (
	lastNode       = []string{"w12"}
	lastThreeNodes = []string{"w10", "w11", "w12"}
)

var rows = []row{
	{name: "one", work: "drain one node", cluster: workload1, nodes: lastNode, runKubectl: drainInSequence, kind: operation.KindDrain, parallel: 1},
	{name: "sequence", work: "drain three nodes in sequence", cluster: workload1, nodes: lastThreeNodes, runKubectl: drainInSequence, kind: operation.KindDrain, parallel: 1},
	{name: "commands", work: "drain three nodes, a kubectl drain for each", cluster: workload1, nodes: lastThreeNodes, runKubectl: drainSeparately, kind: operation.KindDrain, parallel: 1},
	{name: "three", work: "drain three nodes at once", cluster: workload1, nodes: lastThreeNodes, runKubectl: drainConcurrently, kind: operation.KindDrain, parallel: 3},
	{name: "crowd", work: "drain a node of 110 pods, no budgets", cluster: crowdedNode, nodes: lastNode, runKubectl: drainInSequence, kind: operation.KindDrain, parallel: 1},
	{name: "scale-down", work: "scale down by three nodes at once", cluster: workload1, nodes: lastThreeNodes, runKubectl: scaleDown, kind: operation.KindScaleDown, parallel: 3, destructive: true},
	{name: "upgrade", work: "upgrade a control plane and ten workers", cluster: tenWorkers, kind: operation.KindUpgrade, parallel: 1, destructive: true},
}

func rowNames() []string {
	var names []string
	for _, r := range rows {
		names = append(names, r.name)
	}
	return names
}

// selectRows finds rows by name, in the order of the table.
func selectRows(selected string) ([]row, error) {
	if selected == "" {
		return rows, nil
	}
	names := strings.Split(selected, ",")
	for _, name := range names {
		if !slices.Contains(rowNames(), name) {
			return nil, fmt.Errorf("there is no row %q, only %s, and %s alone", name, strings.Join(rowNames(), ", "), tunnelRow)
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
