package testbed

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/natural"
	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/internal/sandbox"
)

// patience bounds how long a condition may take to come true, also on a busy machine.
const patience = 3 * time.Minute

// WaitForOperation waits until an operation meets a condition, for at most three minutes.
// It is an error when the operation ends before.
func WaitForOperation(ctx context.Context, operations ops.Client, id string, condition func(ops.Operation) bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return Poll(ctx, func() (bool, error) {
		op, err := operations.Get(ctx, id)
		if err == nil && op.State.Over() {
			err = fmt.Errorf("operation %s is over: %s: %s", id, op.State, op.Message)
		}
		return err == nil && condition(op), err
	})
}

// BlockedBy returns the condition that a budget that allows nothing keeps a pod on a
// node, and that the operation says what to do about it.
func BlockedBy(budget string) func(ops.Operation) bool {
	return someDrain(func(p operation.DrainProgress) bool { return blocked(p, budget) > 0 })
}

// OnlyBlockedBy returns the condition that such a budget keeps all the pods that are
// left on a node: no eviction is under way. A process that is killed while the API
// server works on one for it can leave another budget charged for two minutes.
func OnlyBlockedBy(budget string) func(ops.Operation) bool {
	return someDrain(func(p operation.DrainProgress) bool {
		kept := blocked(p, budget)
		return kept > 0 && kept == p.Waiting
	})
}

// someDrain returns the condition that a drain of the operation meets a condition.
func someDrain(condition func(operation.DrainProgress) bool) func(ops.Operation) bool {
	return func(op ops.Operation) bool {
		for _, live := range op.Live {
			if live.Drain != nil && condition(*live.Drain) {
				return true
			}
		}
		return false
	}
}

// blocked returns how many pods a budget keeps on the node, with advice what to do.
func blocked(p operation.DrainProgress, budget string) int {
	count := 0
	for _, pod := range p.Blocked {
		if pod.Budget == budget && pod.Advice != "" {
			count++
		}
	}
	return count
}

// NodesOf returns the nodes that have pods of a workload, sorted; none is an error.
func (b *Bed) NodesOf(ctx context.Context, workload string) ([]string, error) {
	pods, err := b.Sandbox.Client().CoreV1().Pods(sandbox.Namespace).List(ctx, meta.ListOptions{LabelSelector: "app=" + workload})
	if err != nil {
		return nil, fmt.Errorf("pods of %s: %w", workload, err)
	}
	nodes := map[string]bool{}
	for _, p := range pods.Items {
		nodes[p.Spec.NodeName] = true
	}
	if len(nodes) == 0 {
		return nil, fmt.Errorf("no node has a pod of %s", workload)
	}
	return slices.SortedFunc(maps.Keys(nodes), natural.Compare), nil
}
