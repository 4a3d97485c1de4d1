package testbed

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/ops"
	"ebb/internal/sandbox"
)

// untilTimeout bounds how long an operation may take to look as wanted.
const untilTimeout = time.Minute

// Until waits until an operation looks as wanted; it is an error when it ends before.
func Until(ctx context.Context, operations ops.Client, id string, wanted func(ops.Operation) bool) error {
	ctx, cancel := context.WithTimeout(ctx, untilTimeout)
	defer cancel()
	return Poll(ctx, func() (bool, error) {
		op, err := operations.Get(ctx, id)
		if err == nil && op.State.Over() {
			err = fmt.Errorf("operation %s is over: %s: %s", id, op.State, op.Message)
		}
		return err == nil && wanted(op), err
	})
}

// BlockedBy holds while a budget that allows nothing keeps a pod on a node, and
// the operation says what to do about it.
func BlockedBy(budget string) func(ops.Operation) bool {
	return func(op ops.Operation) bool {
		for _, live := range op.Live {
			if live.Drain == nil {
				continue
			}
			for _, pod := range live.Drain.Blocked {
				if pod.Budget == budget && pod.Advice != "" {
					return true
				}
			}
		}
		return false
	}
}

// OnlyBlockedBy holds when such a budget keeps all the pods that are left on a node:
// no eviction is under way. A process that is killed while the API server works on
// one for it can leave another budget charged for two minutes.
func OnlyBlockedBy(budget string) func(ops.Operation) bool {
	return func(op ops.Operation) bool {
		for _, live := range op.Live {
			if live.Drain == nil {
				continue
			}
			kept := 0
			for _, pod := range live.Drain.Blocked {
				if pod.Budget == budget && pod.Advice != "" {
					kept++
				}
			}
			if kept > 0 && kept == live.Drain.Waiting {
				return true
			}
		}
		return false
	}
}

// Hosts are the nodes that have pods of a workload, sorted.
func (b *Bed) Hosts(ctx context.Context, workload string) ([]string, error) {
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
	return slices.Sorted(maps.Keys(nodes)), nil
}
