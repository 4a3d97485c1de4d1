package drain

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// busy lets the API server answer evictions for so long with the 429 of priority and fairness.
func (s *sim) busy(d time.Duration) {
	start := time.Now()
	s.failWith = func(*core.Pod) (error, error) {
		if time.Since(start) < d {
			return apierrors.NewTooManyRequests("too many requests", 2), nil
		}
		return nil, nil
	}
}

func TestABusyAPIServerIsToldFromABudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := func(p *core.Pod) { p.Labels = map[string]string{"app": "kept"} }
		zero := budget("zero", maxUnavailable(0))
		zero.Spec.Selector.MatchLabels = map[string]string{"app": "kept"}
		s := newSim(t, newPod("a"), newPod("b"), newPod("kept", kept), zero)
		s.busy(9 * time.Second)
		_, reports, err := s.drain(t.Context())
		require.ErrorIs(t, err, ErrTimeout)
		s.requireEvictedOnce("a", "b")
		require.Equal(t, 6, s.asked["app/a"], "each time that the API server has named, and no more")

		var during Progress
		for _, p := range reports {
			if p.Evicted == 0 && len(p.Blocked) == 3 {
				during = p
			}
		}
		require.Len(t, during.Blocked, 3, "two that the API server keeps waiting, one that a budget does")
		for _, p := range during.Blocked[:2] {
			require.Equal(t, "the API server has too much to do, trying again in 2s: too many requests", p.Reason)
			require.Empty(t, p.Budget)
		}
		require.Equal(t, "app/zero", during.Blocked[2].Budget, "what a budget keeps is the budget's")
		require.Len(t, reports[len(reports)-1].Blocked, 1, "it has passed")
	})
}

// One watch shows all budgets: while it talks about one, another that allows
// nothing is not asked all the same.
func TestABudgetThatAllowsNothingIsAskedOnlyWhenTheWatchIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lively := budget("lively", maxUnavailable(0))
		lively.Spec.Selector.MatchLabels = map[string]string{"app": "lively"}
		s := newSim(t, newPod("a"), budget("zero", maxUnavailable(0)), lively,
			newPod("b", func(p *core.Pod) { p.Labels = map[string]string{"app": "lively"} }))
		talking := make(chan int, 1)
		go func() {
			for range 20 {
				time.Sleep(time.Second)
				s.locked(func() {
					for _, b := range s.budgets() {
						if b.Name == "lively" {
							s.put(budgetsResource, b)
						}
					}
				})
			}
			s.locked(func() { talking <- s.refused })
		}()
		_, _, err := s.drain(t.Context())
		require.ErrorIs(t, err, ErrTimeout)
		require.Zero(t, <-talking, "refusals while the watch talked")
		require.GreaterOrEqual(t, s.refused, 6, "refusals in 40 s of silence, of two budgets")
	})
}

// A list may have been made before the eviction whose fate it should show.
func TestAListDoesNotDispelALaterDoubt(t *testing.T) {
	r := newRun(Request{Node: node})
	r.fault(errors.New("connection reset"), 0)
	earlier, later := listing{doubts: r.api.doubts}, listing{doubts: r.api.doubts + 1}
	r.fault(errors.New("connection reset"), 0)
	r.merge(earlier)
	require.True(t, r.api.down())
	r.merge(later)
	require.False(t, r.api.down())
}
