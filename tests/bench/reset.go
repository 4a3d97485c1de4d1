package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb/internal/sandbox"
	"ebb/internal/testbed"
)

const (
	resetAttempts = 20 // the scheduler spreads well, but not perfectly
	settleTimeout = time.Minute
)

// reset puts the cluster back into the state in which every row begins: all nodes
// schedulable, all pods ready and where the shape wants them, and all budgets at
// rest. Pods that are elsewhere are deleted until their successors are not.
func (l *cluster) reset(ctx context.Context) error {
	if err := l.setSchedulable(ctx, l.spec.node); err != nil {
		return err
	}
	for range resetAttempts {
		pods, err := l.waitSettled(ctx)
		if err != nil {
			return err
		}
		misplaced := l.misplaced(pods)
		if len(misplaced) == 0 {
			return l.setSchedulable(ctx, "")
		}
		for _, p := range misplaced {
			if err := l.api().CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, meta.DeleteOptions{}); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("the pods are not spread evenly after %d tries", resetAttempts)
}

// setSchedulable uncordons all workers, or only one and cordons the others.
func (l *cluster) setSchedulable(ctx context.Context, only string) error {
	for i := range l.spec.workers {
		name := fmt.Sprintf("w%d", i+1)
		value := "null"
		if only != "" && name != only {
			value = "true"
		}
		patch := fmt.Sprintf(`{"spec":{"unschedulable":%s},"metadata":{"annotations":{"ebb/cordoned-by":null,"ebb/draining":null}}}`, value)
		if _, err := l.api().CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(patch), meta.PatchOptions{}); err != nil {
			return fmt.Errorf("node %s: %w", name, err)
		}
	}
	return nil
}

// waitSettled waits until every replica is ready, nothing is terminating and the
// budgets know it, and returns the pods.
func (l *cluster) waitSettled(ctx context.Context) (pods []core.Pod, err error) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	why := ""
	err = testbed.Poll(ctx, func() (bool, error) {
		list, err := l.api().CoreV1().Pods(sandbox.Namespace).List(ctx, meta.ListOptions{})
		if err != nil {
			return false, err
		}
		budgets, err := l.budgets(ctx)
		if err != nil {
			return false, err
		}
		pods, why = list.Items, l.unsettledReason(list.Items, budgets)
		return why == "", nil
	})
	if err != nil && why != "" {
		err = errors.Join(errors.New(why), err)
	}
	return pods, err
}

func (l *cluster) unsettledReason(pods []core.Pod, budgets map[string]policy.PodDisruptionBudget) string {
	ready := map[string]int32{}
	for i := range pods {
		if pods[i].DeletionTimestamp != nil || !sandbox.PodReady(&pods[i]) {
			return fmt.Sprintf("pod %s is not ready or terminating", pods[i].Name)
		}
		ready[deploymentOf(&pods[i])]++
	}
	for _, a := range l.spec.apps {
		if ready[a.Name] != a.Replicas {
			return fmt.Sprintf("%s has %d of %d pods", a.Name, ready[a.Name], a.Replicas)
		}
		b := budgets[a.Name]
		if a.Budget != nil && (b.Status.CurrentHealthy != a.Replicas || b.Status.DisruptionsAllowed < 1 || len(b.Status.DisruptedPods) > 0) {
			return fmt.Sprintf("the budget of %s counts %d of %d pods and allows %d disruptions", a.Name, b.Status.CurrentHealthy, a.Replicas, b.Status.DisruptionsAllowed)
		}
	}
	return ""
}

// misplaced returns the pods that are not at home or, without a home, those of a
// Deployment that are more on a node than its share.
func (l *cluster) misplaced(pods []core.Pod) []core.Pod {
	share := map[string]int{}
	for _, a := range l.spec.apps {
		share[a.Name] = int(a.Replicas) / l.spec.workers
	}
	var wrong []core.Pod
	seen := map[[2]string]int{}
	for i := range pods {
		key := [2]string{deploymentOf(&pods[i]), pods[i].Spec.NodeName}
		seen[key]++
		if l.spec.node == "" && seen[key] > share[key[0]] || l.spec.node != "" && key[1] != l.spec.node {
			wrong = append(wrong, pods[i])
		}
	}
	return wrong
}

// deploymentOf returns the name of a pod's Deployment.
func deploymentOf(p *core.Pod) string { return p.Labels["app"] }

// budgets returns the budgets by the name of their Deployment, which they bear.
func (l *cluster) budgets(ctx context.Context) (map[string]policy.PodDisruptionBudget, error) {
	list, err := l.api().PolicyV1().PodDisruptionBudgets(sandbox.Namespace).List(ctx, meta.ListOptions{})
	if err != nil {
		return nil, err
	}
	budgets := map[string]policy.PodDisruptionBudget{}
	for _, b := range list.Items {
		budgets[b.Name] = b
	}
	return budgets, nil
}
