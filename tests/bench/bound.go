package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"ebb/internal/sandbox"
)

// bound returns the least time, in seconds, in which the budgets let the nodes of a
// row be emptied by anybody; nil when no budget says anything.
//
// A budget that allows a evictions at a time lets its n pods on these nodes go in
// w = ceil(n/a) waves. The next wave can start when the successors of the last
// one are ready, which is one cycle later; a successor is made as soon as its
// pod is terminating, so a cycle is the time from an eviction until the budget
// allows another, about the ready delay. The last wave has to be gone. So the
// budget takes (w-1) × cycle + gone, and the nodes as long as their slowest
// budget. It is the same for nodes in sequence, as gone is shorter than a cycle.
//
// Cycle and gone are measured (see calibrate) and not taken from the delays of
// the sandbox alone, which leave out scheduler, controllers and watches.
func (l *cluster) bound(ctx context.Context, r row) (*float64, error) {
	if l.budgetCycle == 0 || len(r.nodes) == 0 {
		return nil, nil
	}
	pods, err := l.waitSettled(ctx)
	if err != nil {
		return nil, err
	}
	budgets, err := l.budgets(ctx)
	if err != nil {
		return nil, err
	}
	leaving := map[string]int32{}
	for i := range pods {
		if slices.Contains(r.nodes, pods[i].Spec.NodeName) {
			leaving[deploymentOf(&pods[i])]++
		}
	}
	var least time.Duration
	for name, n := range leaving {
		if allowed := budgets[name].Status.DisruptionsAllowed; allowed > 0 {
			waves := (n + allowed - 1) / allowed
			least = max(least, time.Duration(waves-1)*l.budgetCycle+l.podDeletion)
		}
	}
	seconds := least.Seconds()
	return &seconds, nil
}

// calibrate measures what the bound is made of, on the cluster at rest: one pod
// of each budget that allows one is evicted at the same moment. Cycle is the
// shortest time until such a budget allows the next, gone the shortest until
// such a pod is gone: a bound has to hold for whoever is lucky. (A node is empty
// when its slowest budget lets go, so that the longest cycle, which is printed
// beside it, is what a drain of one node meets.)
func (l *cluster) calibrate(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	victims, err := l.podsToEvict(ctx)
	if err != nil || len(victims) == 0 {
		return err
	}
	pods, err := l.api().CoreV1().Pods(sandbox.Namespace).Watch(ctx, meta.ListOptions{})
	if err != nil {
		return err
	}
	defer pods.Stop()
	budgets, err := l.api().PolicyV1().PodDisruptionBudgets(sandbox.Namespace).Watch(ctx, meta.ListOptions{})
	if err != nil {
		return err
	}
	defer budgets.Stop()
	c := calibration{evictedAt: map[string]time.Time{}, exhausted: map[string]bool{}, cycles: map[string]time.Duration{}, gone: map[string]time.Duration{}}
	for name, pod := range victims {
		c.evictedAt[name], c.evictedAt[pod] = time.Now(), time.Now()
		if err := l.api().PolicyV1().Evictions(sandbox.Namespace).Evict(ctx, &policy.Eviction{ObjectMeta: meta.ObjectMeta{Name: pod, Namespace: sandbox.Namespace}}); err != nil {
			return err
		}
	}
	for len(c.cycles) < len(victims) || len(c.gone) < len(victims) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("calibrate: %w", ctx.Err())
		case event, open := <-pods.ResultChan():
			err = c.onPod(event, open)
		case event, open := <-budgets.ResultChan():
			err = c.onBudget(event, open)
		}
		if err != nil {
			return err
		}
	}
	l.budgetCycle, l.podDeletion = shortest(c.cycles), shortest(c.gone)
	logProgress("  cluster %s: of %d budgets of one, the first allows the next eviction after %.2f s and the last after %.2f s; a pod is gone after %.2f s",
		l.spec.name, len(victims), l.budgetCycle.Seconds(), longest(c.cycles).Seconds(), l.podDeletion.Seconds())
	return nil
}

// podsToEvict returns one pod of each Deployment whose budget allows one eviction.
func (l *cluster) podsToEvict(ctx context.Context) (map[string]string, error) {
	pods, err := l.waitSettled(ctx)
	if err != nil {
		return nil, err
	}
	budgets, err := l.budgets(ctx)
	if err != nil {
		return nil, err
	}
	victims := map[string]string{}
	for i := range pods {
		if name := deploymentOf(&pods[i]); budgets[name].Status.DisruptionsAllowed == 1 {
			victims[name] = pods[i].Name
		}
	}
	return victims, nil
}

// calibration collects times by the names of budgets and pods.
type calibration struct {
	evictedAt    map[string]time.Time
	exhausted    map[string]bool // budgets that were seen to allow none
	cycles, gone map[string]time.Duration
}

var errWatchEnded = errors.New("calibrate: a watch ended")

func (c *calibration) onPod(event watch.Event, open bool) error {
	if !open {
		return errWatchEnded
	}
	p, ok := event.Object.(*core.Pod)
	if !ok || event.Type != watch.Deleted {
		return nil
	}
	if sent, ours := c.evictedAt[p.Name]; ours {
		c.gone[p.Name] = time.Since(sent)
	}
	return nil
}

func (c *calibration) onBudget(event watch.Event, open bool) error {
	if !open {
		return errWatchEnded
	}
	b, ok := event.Object.(*policy.PodDisruptionBudget)
	if !ok || c.evictedAt[b.Name].IsZero() {
		return nil
	}
	switch {
	case b.Status.DisruptionsAllowed == 0:
		c.exhausted[b.Name] = true
	case c.exhausted[b.Name] && c.cycles[b.Name] == 0:
		c.cycles[b.Name] = time.Since(c.evictedAt[b.Name])
	}
	return nil
}

func longest(times map[string]time.Duration) (longest time.Duration) {
	for _, t := range times {
		longest = max(longest, t)
	}
	return longest
}

func shortest(times map[string]time.Duration) time.Duration {
	var best time.Duration
	for _, t := range times {
		if best == 0 || t < best {
			best = t
		}
	}
	return best
}
