package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/drain"
)

func TestDrainFollowsItsBudget(t *testing.T) {
	b := newDrainBed(t)
	b.deploy("web", 3)
	b.budget("web", "web", unavailable(1))
	result, err := b.start(time.Minute).wait()
	require.NoError(t, err)
	require.Equal(t, 3, result.Evicted)
	require.Equal(t, 3, strings.Count(result.Output, "evicting pod "+b.namespace), "no eviction was refused")
	budget, err := b.cluster.Client.PolicyV1().PodDisruptionBudgets(b.namespace).Get(t.Context(), "web", meta.GetOptions{})
	require.NoError(t, err)
	require.GreaterOrEqual(t, budget.Status.CurrentHealthy, int32(2))
}

func TestDrainNamesWhatCannotWork(t *testing.T) {
	b := newDrainBed(t)
	for _, app := range []string{"twice", "zero", "all", "fine"} {
		b.create(app, 1)
	}
	b.crashing("crash")
	for _, app := range []string{"twice", "zero", "all", "fine"} {
		b.waitReady(app, 1)
	}
	b.budget("one", "twice", unavailable(1))
	b.budget("two", "twice", unavailable(1))
	b.budget("zero", "zero", unavailable(0))
	b.budget("all", "all", available(1))
	b.budget("crash", "crash", unavailable(1))

	a := b.start(12 * time.Second)
	for app, want := range map[string]drain.BlockedPod{
		"twice": {Budget: b.namespace + "/one, " + b.namespace + "/two", Reason: "2 budgets select it", Advice: "selectors"},
		"zero":  {Budget: b.namespace + "/zero", Reason: "maxUnavailable: 0", Advice: "maxUnavailable"},
		"all":   {Budget: b.namespace + "/all", Reason: "minAvailable: 1", Advice: "minAvailable"},
		"crash": {Budget: b.namespace + "/crash", Reason: "CrashLoopBackOff", Advice: "unhealthyPodEvictionPolicy: AlwaysAllow"},
	} {
		got, after := a.blocked(t, b.namespace+"/"+app)
		require.Less(t, after, time.Second, app)
		require.Equal(t, want.Budget, got.Budget)
		require.Contains(t, got.Reason, want.Reason)
		require.Contains(t, got.Advice, want.Advice)
	}
	result, err := a.wait()
	require.ErrorIs(t, err, drain.ErrTimeout)
	require.Zero(t, result.Evicted)
	var failure *drain.Error
	require.ErrorAs(t, err, &failure)
	require.Len(t, failure.Blocked, 4, "the pod without a budget has gone")
	require.InDelta(t, 12, time.Since(a.started).Seconds(), 1.5)
	for _, text := range []string{"drain node " + b.node, b.namespace + "/one", b.namespace + "/two", "pod " + b.namespace + "/fine"} {
		require.ErrorContains(t, err, text)
	}
}

func TestDrainErrorAndReportsSayTheSame(t *testing.T) {
	b := newDrainBed(t)
	pods := b.deploy("zero", 20)
	b.budget("zero", "zero", unavailable(0))
	b.bare("held", func(p *pod) { p.Finalizers = []string{"example.com/hold"} })
	b.waitReady("held", 1)
	a := b.start(8*time.Second, func(r *drain.Request) { r.Settings.Force, r.Settings.GracePeriod = true, 0 })
	_, err := a.wait()
	require.ErrorIs(t, err, drain.ErrTimeout)
	var failure *drain.Error
	require.ErrorAs(t, err, &failure)

	require.Equal(t, b.node, failure.Node)
	text := err.Error()
	require.True(t, strings.HasPrefix(text, "drain node "+b.node+": not empty after 8s; 21 pods left:"), text)
	require.Contains(t, text, "\n  "+b.namespace+"/held: still terminating ")
	require.Contains(t, text, "finalizers: example.com/hold")
	for _, p := range pods {
		require.Contains(t, text, "\n  "+b.namespace+"/"+p.Name+" blocked by budget "+b.namespace+"/zero: ")
	}
	require.True(t, strings.HasSuffix(text, "\nend of the output:\n"+failure.Output), text)
	require.InDelta(t, 2000, len([]rune(failure.Output)), 1, "so much was said that only the end of it is kept")

	last := a.last()
	require.Equal(t, b.node, last.Node)
	require.Equal(t, failure.Output, last.Output)
	require.Equal(t, failure.Blocked[1:], last.Blocked[1:])
	require.Equal(t, b.namespace+"/held", last.Blocked[0].Pod) // its reason holds a time
	require.Contains(t, last.Blocked[0].Reason, "finalizers: example.com/hold")
	require.Equal(t, 21, last.Waiting)
}
