package drain

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"ebb/internal/cluster"
)

// eviction is an eviction to be requested, and its answer.
type eviction struct {
	pod      types.UID
	budget   *pdb            // whose allowance it is counted against; nil = none
	probe    bool            // the budgets do not allow it, as far as the watch shows
	signal   bool            // a probe that is not counted: the first of a pod whose budget never allows one
	balance  cluster.Balance // of the budget
	conflict bool            // several budgets match the pod

	err error // of the request
}

// hold is why the eviction of a pod is not requested now, or was refused.
type hold struct {
	pod     types.UID
	budgets []pdb  // that do not allow it
	message string // of the last refusal that no budget explains
}

// evictions returns the evictions to request now, the pods of the current tier that are
// held back, and when that may change without any news.
func (s snapshot) evictions(now time.Time) (evict []eviction, held []hold, wake time.Time) {
	free := s.settings.Parallel - s.inFlight
	if s.cordon == cordonUnknown || s.stale.unresolved() || s.api.unavailable(now) != "" {
		free = 0
	}
	b := bookings{snapshot: s, booked: map[types.UID]int{}}
	for _, p := range s.queue() {
		e, h, at := b.consider(p, now)
		if e != nil && free > 0 {
			free--
			b.book(*e)
			evict = append(evict, *e)
		}
		if h != nil {
			held = append(held, *h)
		}
		if e == nil {
			wake = earliest(wake, at)
		}
	}
	return evict, append(append(held, s.inFlightHolds()...), s.awaitedHolds()...), wake
}

// awaitedHolds returns why pods that run to completion are not evicted.
func (s snapshot) awaitedHolds() (held []hold) {
	for _, p := range s.pods {
		if p.action == await && !p.left() {
			held = append(held, hold{pod: p.UID, message: awaited(p.Pod, s.settings)})
		}
	}
	return held
}

// queue returns the pods of the current tier whose eviction is still to be requested.
// Those whose budget lets them go in most rounds come first, because that takes longest.
func (s snapshot) queue() []pod {
	tier := s.tier()
	var queue []pod
	waiting := map[types.UID]int{} // pods of each budget
	for _, p := range s.pods {
		if !p.evictable() || tierOf(p.Pod) != tier {
			continue
		}
		queue = append(queue, p)
		if len(p.matching) == 1 {
			waiting[p.matching[0].UID]++
		}
	}
	rounds := func(p pod) int {
		if len(p.matching) != 1 {
			return 0
		}
		budget := p.matching[0]
		atOnce := max(int(budget.Status.ExpectedPods-budget.Status.DesiredHealthy), 1)
		return (waiting[budget.UID] + atOnce - 1) / atOnce
	}
	slices.SortStableFunc(queue, func(a, b pod) int { return cmp.Compare(rounds(b), rounds(a)) })
	return queue
}

// inFlightHolds returns why evictions in flight were not requested, or were refused, up
// to now: a probe is expected to be refused, and a retry to be refused again.
func (s snapshot) inFlightHolds() (held []hold) {
	for _, p := range s.pods {
		if !p.inFlight || p.left() {
			continue
		}
		h := hold{pod: p.UID, message: p.lastRefusal()}
		if p.probe {
			h.budgets = p.matching
		}
		if h.budgets != nil || h.message != "" {
			held = append(held, h)
		}
	}
	return held
}

// bookings are the evictions decided on so far, counted against their budgets.
type bookings struct {
	snapshot
	booked map[types.UID]int // by budget
}

func (b *bookings) book(e eviction) {
	if e.budget != nil {
		b.booked[e.budget.UID]++
	}
}

// consider decides about one pod, as far as it and its budgets are concerned. It returns
// its eviction if that may be requested now, why it is held or expected to be refused,
// and when to consider it again without any news.
func (b *bookings) consider(p pod, now time.Time) (e *eviction, h *hold, again time.Time) {
	e, h = &eviction{pod: p.UID, conflict: len(p.matching) > 1}, &hold{pod: p.UID, message: p.lastRefusal()}
	switch {
	case b.terminating[p.Namespace]:
		h.message = "its namespace is being deleted, which will end it"
		return nil, h, time.Time{}
	case len(p.matching) > 1:
		e.probe, h.budgets = true, p.matching
		again = b.stale.conflictProbeAt()
	case len(p.matching) == 1:
		budget, booked := p.matching[0], b.booked[p.matching[0].UID]
		e.budget, e.balance = &budget, b.balances[budget.UID]
		if e.balance.Available > booked {
			break
		}
		e.probe, h.budgets = true, p.matching
		if e.signal = signals(p, budget); e.signal {
			e.budget = nil
			break
		}
		if booked > 0 { // by another pod, which is not answered yet
			return nil, h, time.Time{}
		}
		again = b.stale.probeAt(budget.PodDisruptionBudget, e.balance)
	}
	if again = later(again, p.retryAt()); now.Before(again) {
		e = nil
	}
	if len(h.budgets) == 0 && h.message == "" {
		h = nil
	}
	return e, h, again
}

// signals reports whether the eviction of a pod is requested at once although its only
// budget will never allow it. Such a budget often stands there for an operator (Strimzi's
// drain cleaner, KubeVirt) whose admission webhook takes the request itself as the signal
// to move the pod, and moves only the pods that it has been asked for. So each attempt asks
// once for each such pod. Whether a webhook is meant is not looked up: its configuration
// would have to be read and matched as the API server does it (selectors, CEL conditions),
// while a request without one costs a refusal that changes nothing. Budgets that will allow
// an eviction, and those that have been asked about, are left to the probes.
func signals(p pod, budget pdb) bool {
	return !p.requested && neverAllows(budget.PodDisruptionBudget)
}
