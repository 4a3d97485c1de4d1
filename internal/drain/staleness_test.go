package drain

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"ebb/internal/cluster"
	"ebb/internal/operation"
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

func TestOverloadedAPIServerIsNotABudget(t *testing.T) {
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

		var during operation.DrainProgress
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

// One watch shows all budgets: while it shows changes of one, another that allows
// nothing is not probed.
func TestBudgetIsProbedOnlyWhenTheWatchIsSilent(t *testing.T) {
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
		require.Equal(t, 2, <-talking, "refusals while the watch talked: the first request of each pod")
		require.GreaterOrEqual(t, s.refused, 6, "refusals in 40 s of silence, of two budgets")
	})
}

// A budget that never changes and allows nothing is probed some ten times a minute.
func TestProbesOfABudget(t *testing.T) {
	for _, jitter := range []float64{0, 0.5, 0.999} {
		var s staleness
		balance := cluster.Balance{Since: now, Jitter: jitter}
		var delays []time.Duration
		for at := now; at.Sub(now) < time.Minute; balance.Probes++ {
			at = s.probeAt(allowing("x", 0).PodDisruptionBudget, balance)
			delays = append(delays, at.Sub(balance.Since))
			balance.Since = at
		}
		require.GreaterOrEqual(t, len(delays), 6)
		require.LessOrEqual(t, len(delays), 12)
		for _, d := range delays {
			require.GreaterOrEqual(t, d, time.Second)
			require.LessOrEqual(t, d, 10*time.Second)
		}
	}
}

// A list may have been made before the eviction whose outcome it should show.
func TestListDoesNotShowTheOutcomeOfALaterEviction(t *testing.T) {
	var s staleness
	s.unknown++
	earlier, later := s.unknown, s.unknown+1
	s.unknown++
	s.listed(earlier, time.Unix(1, 0))
	require.True(t, s.unresolved())
	s.listed(later, time.Unix(1, 0))
	require.False(t, s.unresolved())
}
