package operations

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	policy "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/config"
	"ebb/internal/forecast"
	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/internal/sandbox"
	"ebb/internal/testbed"
	"ebb/internal/version"
)

const noRoom = "would find no room on the nodes that stay"

// deployFor deploys a workload until the test is over or remove is called.
func deployFor(t *testing.T, w sandbox.Workload) (remove func()) {
	t.Helper()
	require.NoError(t, shared.Sandbox.Deploy(t.Context(), w))
	remove = func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		api := shared.Sandbox.Client()
		now := meta.DeletePropagationForeground
		_ = api.AppsV1().Deployments(sandbox.Namespace).Delete(ctx, w.Name, meta.DeleteOptions{PropagationPolicy: &now})
		its, atOnce := meta.ListOptions{LabelSelector: "app=" + w.Name}, int64(0)
		require.NoError(t, testbed.Poll(ctx, func() (bool, error) {
			if err := api.CoreV1().Pods(sandbox.Namespace).DeleteCollection(ctx, meta.DeleteOptions{GracePeriodSeconds: &atOnce}, its); err != nil {
				return false, nil
			}
			_, err := api.AppsV1().Deployments(sandbox.Namespace).Get(ctx, w.Name, meta.GetOptions{})
			return apierrors.IsNotFound(err), nil // which it is when its last pod has gone
		}))
	}
	t.Cleanup(remove)
	return remove
}

// share returns a part of the CPU that a worker can allocate, as a request.
func share(t *testing.T, percent int64) string {
	t.Helper()
	node, err := shared.Sandbox.Client().CoreV1().Nodes().Get(t.Context(), "w1", meta.GetOptions{})
	require.NoError(t, err)
	return fmt.Sprintf("%dm", node.Status.Allocatable.Cpu().MilliValue()*percent/100)
}

func planOf(t *testing.T, args ...string) (f forecast.Forecast) {
	t.Helper()
	code, out := ebb(t, append([]string{"plan", "-o", "json"}, args...)...)
	require.Zero(t, code, out)
	require.NoError(t, json.Unmarshal([]byte(out), &f), out)
	return f
}

// startsAndIsCancelled starts a scale-down, waits until it drains the node, and cancels
// it. It returns what it warned of.
func startsAndIsCancelled(t *testing.T, r ops.Request) (warning string) {
	t.Helper()
	id := begin(t, r)
	until(t, id, func(o ops.Operation) bool { return phase(o, r.Nodes[0]) == operation.PhaseDraining })
	require.NoError(t, shared.Ops.Cancel(t.Context(), id))
	end := finish(t, id)
	require.Equal(t, ops.Cancelled, end.State, text(end))
	return end.Status.Warning
}

// The requests of pods, on the nodes that stay and on the one that goes, and what nodes
// can allocate decide about the capacity warning and --strict.
func TestRoomOnTheNodesThatStayDecides(t *testing.T) {
	t.Cleanup(func() { untouched(t) })
	require.NoError(t, shared.Configure(func(c *config.Cluster) { c.Drain.Timeout = config.Duration(time.Minute) }))
	t.Cleanup(func() { require.NoError(t, shared.Configure(nil)) })
	removeFiller := deployFor(t, sandbox.Workload{Name: "filler", Replicas: 4, CPU: share(t, 60), Nodes: []string{"w1", "w2", "w3", "w4"}})
	// Its pod takes an hour to stop, so that no drain is over before it is cancelled.
	deployFor(t, sandbox.Workload{Name: "heavy", Replicas: 1, CPU: share(t, 60), Annotations: map[string]string{"sandbox.ebb/delete-delay": "1h"}})
	hosts, err := shared.NodesOf(t.Context(), "heavy")
	require.NoError(t, err)
	require.Equal(t, []string{"w5"}, hosts, "the only worker with room")
	leaves := ops.Request{Kind: operation.KindScaleDown, Nodes: hosts}
	strictly := leaves
	strictly.Strict = true

	plan := planOf(t, "scale-down", testbed.ClusterName, "--nodes", "w5")
	require.Equal(t, plan.Steps[0].Drain.Moves, plan.Room.Moving)
	require.Len(t, plan.Room.Unschedulable, 1)
	require.Contains(t, plan.Room.Unschedulable[0].Pod, "default/heavy-")
	end := finish(t, begin(t, strictly))
	require.Equal(t, ops.Refused, end.State, text(end))
	require.Contains(t, end.Message, noRoom+": default/heavy-")
	require.Contains(t, startsAndIsCancelled(t, leaves), noRoom)

	removeFiller()
	require.Empty(t, planOf(t, "scale-down", testbed.ClusterName, "--nodes", "w5").Room.Unschedulable)
	require.NotContains(t, startsAndIsCancelled(t, leaves), noRoom)
	require.Empty(t, startsAndIsCancelled(t, strictly), "with room, --strict has nothing to refuse")
}

// secondBudget makes another budget for the pods of a workload, until the test is over.
func secondBudget(t *testing.T, workload string) {
	t.Helper()
	api := shared.Sandbox.Client().PolicyV1().PodDisruptionBudgets(sandbox.Namespace)
	_, err := api.Create(t.Context(), &policy.PodDisruptionBudget{
		ObjectMeta: meta.ObjectMeta{Name: workload + "-too"},
		Spec:       policy.PodDisruptionBudgetSpec{Selector: &meta.LabelSelector{MatchLabels: map[string]string{"app": workload}}},
	}, meta.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, api.Delete(context.Background(), workload+"-too", meta.DeleteOptions{})) })
}

// What would stop a drain, or take a service down, is found on every node before the first
// is touched.
func TestDrainsOfAllNodesAreCheckedBeforeTheFirst(t *testing.T) {
	t.Cleanup(func() { untouched(t) })
	forbid(t) // web's budget allows nothing
	deployFor(t, sandbox.Workload{Name: "twice", Replicas: 2, Spread: true, Nodes: []string{"w1", "w2"}, Budget: &sandbox.Budget{MaxUnavailable: "1"}})
	t.Cleanup(func() { require.NoError(t, shared.Sandbox.DeleteBudget(context.Background(), "twice")) })
	secondBudget(t, "twice")
	deployFor(t, sandbox.Workload{Name: "pair", Replicas: 2, Nodes: []string{"w4"}})
	require.NoError(t, shared.Sandbox.DeployBare(t.Context(), sandbox.Workload{Name: "lonely", Replicas: 1, Nodes: []string{"w5"},
		Annotations: map[string]string{"karpenter.sh/do-not-disrupt": "true"}}))
	t.Cleanup(func() {
		require.NoError(t, shared.Sandbox.Client().CoreV1().Pods(sandbox.Namespace).Delete(context.Background(), "lonely-1", meta.DeleteOptions{}))
	})
	found := []string{
		"blocked by budget default/web: needs 10 healthy pods and has 10; it never allows an eviction",
		"blocked by budget default/twice, default/twice-too: 2 budgets select it",
		" on w4: all its 2 pods are on this node",
		"default/lonely-1 on w5: it has no controller",
	}

	to, _ := next(t)
	end := finish(t, begin(t, ops.Request{Kind: operation.KindUpgrade, Route: version.Route{Target: version.Of(to)}, Strict: true}))
	require.Equal(t, ops.Refused, end.State, text(end))
	for _, part := range found {
		require.Contains(t, end.Message, part)
	}
	verify(t, testbed.OnlyCordoned())

	require.NoError(t, shared.Configure(func(c *config.Cluster) { c.Drain.Force = true }))
	t.Cleanup(func() { require.NoError(t, shared.Configure(nil)) })
	id := begin(t, ops.Request{Kind: operation.KindDrain, Nodes: []string{"w4", "w1"}})
	until(t, id, blocked)
	require.NoError(t, shared.Ops.Cancel(t.Context(), id))
	end = finish(t, id)
	for _, part := range found[:3] {
		require.Contains(t, end.Status.Warning, part, "otherwise it is a warning")
	}
	plan := planOf(t, "scale-down", testbed.ClusterName, "--nodes", "w5")
	require.Contains(t, fmt.Sprint(plan.Steps[0].Drain.Objections), "karpenter.sh/do-not-disrupt")
}
