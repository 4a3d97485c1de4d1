package faults

import (
	"context"
	"strings"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb/internal/sandbox"
	"ebb/internal/testbed"
)

// pinnedTo begins the name of a workload whose pods can be on one node only.
const (
	pinnedTo       = "on-"
	pinnedReplicas = 2
	webReplicas    = clusterWorkers // of the workload that has a budget
)

// pinned are pods of pinned workloads: which workload each is of.
type pinned map[types.UID]string

// pinned are those that are in the cluster and are not about to end.
func (env *environment) pinned(ctx context.Context) (pinned, error) {
	list, err := env.bed.Sandbox.Client().CoreV1().Pods(sandbox.Namespace).List(ctx, meta.ListOptions{})
	if err != nil {
		return nil, err
	}
	pods := pinned{}
	for i := range list.Items {
		p := &list.Items[i]
		if app := p.Labels["app"]; strings.HasPrefix(app, pinnedTo) && p.DeletionTimestamp == nil {
			pods[p.UID] = app
		}
	}
	return pods, nil
}

// settle waits until every pinned workload has its pods, ready, and nothing else has.
// That a Deployment says so is not enough: its status can be one from before.
func (env *environment) waitForPods(ctx context.Context) error {
	return testbed.Poll(ctx, func() (bool, error) {
		list, err := env.bed.Sandbox.Client().CoreV1().Pods(sandbox.Namespace).List(ctx, meta.ListOptions{})
		if err != nil {
			return false, err
		}
		pods, total := pinned{}, 0
		for i := range list.Items {
			p := &list.Items[i]
			if p.DeletionTimestamp != nil || !sandbox.PodReady(p) {
				return false, nil
			}
			total++
			if app := p.Labels["app"]; strings.HasPrefix(app, pinnedTo) {
				pods[p.UID] = app
			}
		}
		env.pods = pods
		return len(pods) == clusterWorkers*pinnedReplicas && total == len(pods)+webReplicas, nil
	})
}

// stayed is how many pods of each workload are still there.
func (p pinned) stayed(now pinned) map[string]int {
	counts := map[string]int{}
	for uid, app := range p {
		counts[app] += 0
		if now[uid] != "" {
			counts[app]++
		}
	}
	return counts
}
