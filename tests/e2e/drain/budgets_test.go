package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/drain"
	"ebb/internal/operation"
)

func TestDrainFollowsItsBudget(t *testing.T) {
	b := newFixture(t)
	b.deploy("web", 3)
	b.budget("web", "web", unavailable(1))
	log := b.record()
	allowances := b.allowances("web")
	result, err := b.start(time.Minute).wait()
	require.NoError(t, err)
	require.Equal(t, 3, result.Evicted)
	evictions, allowed := log.evictions(), allowances()
	require.Len(t, evictions, 3, "no eviction was refused")
	require.GreaterOrEqual(t, len(allowed), 2)
	for i, e := range evictions[1:] {
		require.InDelta(t, 0, e.at.Sub(allowed[i]).Seconds(), 1, "the moment the budget allows it")
	}
	budget, err := b.cluster.Client.PolicyV1().PodDisruptionBudgets(b.namespace).Get(t.Context(), "web", meta.GetOptions{})
	require.NoError(t, err)
	require.GreaterOrEqual(t, budget.Status.CurrentHealthy, int32(2))
}

// allowances notes when a budget that allowed nothing allows something again.
func (b *fixture) allowances(name string) (times func() []time.Time) {
	b.t.Helper()
	events, err := b.box.Client().PolicyV1().PodDisruptionBudgets(b.namespace).Watch(b.t.Context(), meta.SingleObject(meta.ObjectMeta{Name: name}))
	require.NoError(b.t, err)
	noted := make(chan []time.Time, 1)
	go func() {
		var allowed []time.Time
		before := int32(1)
		for event := range events.ResultChan() {
			if budget, ok := event.Object.(*policy.PodDisruptionBudget); ok {
				if budget.Status.DisruptionsAllowed > 0 && before == 0 {
					allowed = append(allowed, time.Now())
				}
				before = budget.Status.DisruptionsAllowed
			}
		}
		noted <- allowed
	}()
	return func() []time.Time {
		events.Stop()
		return <-noted
	}
}

func TestDrainNamesWhatCannotWork(t *testing.T) {
	b := newFixture(t)
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

	log := b.record()
	a := b.start(12 * time.Second)
	cases := map[string]operation.BlockedPod{
		"twice": {Budget: b.namespace + "/one, " + b.namespace + "/two", Reason: "2 budgets select it", Advice: "selectors"},
		"zero":  {Budget: b.namespace + "/zero", Reason: "maxUnavailable: 0", Advice: "maxUnavailable"},
		"all":   {Budget: b.namespace + "/all", Reason: "minAvailable: 1", Advice: "minAvailable"},
		"crash": {Budget: b.namespace + "/crash", Reason: "CrashLoopBackOff", Advice: "unhealthyPodEvictionPolicy: AlwaysAllow"},
	}
	for app, want := range cases {
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
	require.ErrorContains(t, err, "drain node "+b.node)
	require.ErrorContains(t, err, "pod "+b.namespace+"/fine")
	for _, want := range cases {
		for _, text := range []string{"blocked by budget " + want.Budget + ": ", want.Reason, want.Advice} {
			require.ErrorContains(t, err, text)
		}
	}
	var refused []request
	for _, e := range log.evictions() {
		if e.code == http.StatusInternalServerError {
			refused = append(refused, e)
		}
	}
	require.NotEmpty(t, refused, "the API server has said so itself, with its 500")
	require.LessOrEqual(t, len(refused), 8)
	require.Greater(t, refused[len(refused)-1].at.Sub(a.started), 4*time.Second, "it is tried until the attempt ends")
}

func TestDrainErrorAndReportsSayTheSame(t *testing.T) {
	b := newFixture(t)
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
