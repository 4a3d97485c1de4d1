package drain

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/config"
	"ebb/internal/operation"
)

func TestMatchingBudgets(t *testing.T) {
	now := meta.NewTime(time.Unix(1, 0))
	healthy := func(b *policy.PodDisruptionBudget) { b.Status.CurrentHealthy, b.Status.DesiredHealthy = 3, 2 }
	short := func(b *policy.PodDisruptionBudget) { b.Status.CurrentHealthy, b.Status.DesiredHealthy = 1, 2 }
	with := func(name string, change func(*policy.PodDisruptionBudget)) *policy.PodDisruptionBudget {
		b := budget(name, maxUnavailable(1))
		change(b)
		return b
	}
	unready := func(p *core.Pod) { p.Status.Conditions = nil }
	for name, c := range map[string]struct {
		pod     *core.Pod
		budgets []*policy.PodDisruptionBudget
		want    string
	}{
		"none":                    {newPod("a"), nil, ""},
		"one":                     {newPod("a"), []*policy.PodDisruptionBudget{with("x", healthy)}, "app/x"},
		"two, by name":            {newPod("a"), []*policy.PodDisruptionBudget{with("y", healthy), with("x", short)}, "app/x, app/y"},
		"other labels":            {newPod("a", func(p *core.Pod) { p.Labels = nil }), []*policy.PodDisruptionBudget{with("x", healthy)}, ""},
		"pending":                 {newPod("a", func(p *core.Pod) { p.Status.Phase = core.PodPending }), []*policy.PodDisruptionBudget{with("x", short)}, ""},
		"finished":                {newPod("a", func(p *core.Pod) { p.Status.Phase = core.PodFailed }), []*policy.PodDisruptionBudget{with("x", short)}, ""},
		"terminating":             {newPod("a", func(p *core.Pod) { p.DeletionTimestamp = &now }), []*policy.PodDisruptionBudget{with("x", short)}, ""},
		"unready, budget healthy": {newPod("a", unready), []*policy.PodDisruptionBudget{with("x", healthy)}, ""},
		"unready, budget short":   {newPod("a", unready), []*policy.PodDisruptionBudget{with("x", short)}, "app/x"},
		"no selector selects none": {newPod("a"), []*policy.PodDisruptionBudget{
			with("x", func(b *policy.PodDisruptionBudget) { b.Spec.Selector = nil })}, ""},
		"empty selector selects all": {newPod("a"), []*policy.PodDisruptionBudget{
			with("x", func(b *policy.PodDisruptionBudget) { b.Spec.Selector = &meta.LabelSelector{} })}, "app/x"},
		"invalid selector is passed over": {newPod("a"), []*policy.PodDisruptionBudget{
			with("x", func(b *policy.PodDisruptionBudget) {
				b.Spec.Selector = &meta.LabelSelector{MatchExpressions: []meta.LabelSelectorRequirement{{Key: "app", Operator: "Bad"}}}
			})}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, budgetNames(matching(c.pod, selectors{}.compile(c.budgets))))
		})
	}
}

func TestSelectorsFollowAnEditedBudget(t *testing.T) {
	s, b := selectors{}, budget("x", maxUnavailable(1))
	require.Len(t, matching(newPod("a"), s.compile([]*policy.PodDisruptionBudget{b})), 1)
	b = b.DeepCopy()
	b.Generation, b.Spec.Selector = 2, &meta.LabelSelector{MatchLabels: map[string]string{"app": "other"}}
	require.Empty(t, matching(newPod("a"), s.compile([]*policy.PodDisruptionBudget{b})))
}

func TestTiers(t *testing.T) {
	priority := func(n int32) func(*core.Pod) { return func(p *core.Pod) { p.Spec.Priority = &n } }
	class := func(c string) func(*core.Pod) { return func(p *core.Pod) { p.Spec.PriorityClassName = c } }
	require.Equal(t, ordinary, tierOf(newPod("a")))
	require.Equal(t, ordinary, tierOf(newPod("a", priority(1_999_999_999))))
	require.Equal(t, ordinary, tierOf(newPod("a", class("high"))))
	require.Equal(t, critical, tierOf(newPod("a", priority(2_000_000_000))))
	require.Equal(t, critical, tierOf(newPod("a", class("system-cluster-critical"))))
	require.Equal(t, critical, tierOf(newPod("a", class("system-node-critical"))))
}

func TestSettingsHaveTheDefaultsOfTheFile(t *testing.T) {
	require.Equal(t, Settings{GracePeriod: -1, DeleteEmptyDir: true, Parallel: 16, WaitForVolumeDetach: true, VolumeDetachTimeout: time.Minute},
		NewSettings(config.Drain{}))
	no, grace := false, int64(0)
	require.Equal(t, Settings{Force: true, SkipWaitForDelete: 2 * time.Second, Parallel: 3, VolumeDetachTimeout: time.Second},
		NewSettings(config.Drain{
			GracePeriod: &grace, Force: true, DeleteEmptyDir: &no, SkipWaitForDeleteTimeout: config.Duration(2 * time.Second),
			Parallel: 3, WaitForVolumeDetach: &no, VolumeDetachTimeout: config.Duration(time.Second),
		}))
}

func TestBackoffStaysWithinItsBounds(t *testing.T) {
	for n := 1; n < 40; n++ {
		for _, jitter := range []float64{0, 0.5, 0.999} {
			d := backoff(n, firstRetry, lastRetry, jitter)
			require.GreaterOrEqual(t, d, firstRetry)
			require.LessOrEqual(t, d, lastRetry)
		}
	}
}

func TestBlockedPodOnOneLine(t *testing.T) {
	require.Equal(t, "app/a blocked by budget app/x: needs 2 healthy pods and has 2 (do this)",
		operation.BlockedPod{Pod: "app/a", Budget: "app/x", Reason: "needs 2 healthy pods and has 2", Advice: "do this"}.String())
	require.Equal(t, "app/a: terminating", operation.BlockedPod{Pod: "app/a", Reason: "terminating"}.String())
}
