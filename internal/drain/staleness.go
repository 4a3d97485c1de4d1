package drain

import (
	"time"

	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb/internal/cluster"
)

const (
	// relistAfter is how long the watch may show no event at all before the node's
	// pods are listed.
	relistAfter = 30 * time.Second
	// budgetsFreshFor is how long after a change of any budget the watch is believed
	// about all budgets. It shows them all, in order. On a busy cluster it takes a
	// replacement longer than the first probe to get ready, and without this each
	// budget would be probed meanwhile.
	budgetsFreshFor = 3 * time.Second
	// Probes of a budget that allows no eviction: the delay doubles from the first to
	// the last, and each is up to a quarter shorter or longer.
	firstProbe  = 3 * time.Second
	lastProbe   = 8 * time.Second
	probeJitter = 0.25
)

// staleness decides when the shared watch may be behind the API server, and what the
// API server itself is asked then. A watch can be broken without a sign, so:
//
//	the watch has shown no event for relistAfter       → the node's pods are listed
//	an eviction has ended without a known outcome      → the node's pods are listed, and
//	                                                     nothing is evicted before that
//	the watch shows none of the node's pods any more   → the node's pods are listed, before
//	                                                     the node is called empty
//	budgets do not allow an eviction, and no budget    → the eviction is requested all the
//	has changed for a while                              same: a probe
//
// It holds only what has happened; its methods are given the time.
type staleness struct {
	event       time.Time            // last event of the watch, or last list
	budgetEvent time.Time            // last change of a budget
	versions    map[types.UID]string // resourceVersion of each budget at that time
	unknown     int                  // evictions so far that ended without a known outcome
	resolved    int                  // of those: before the request of a list that has been answered
}

// sawBudgets records the budgets that the watch shows.
func (w *staleness) sawBudgets(budgets []*policy.PodDisruptionBudget, now time.Time) {
	for _, b := range budgets {
		if w.versions[b.UID] != b.ResourceVersion {
			w.versions[b.UID], w.budgetEvent = b.ResourceVersion, now
		}
	}
}

// listed records the answer to a list. unknown is the number of evictions without a
// known outcome when it was requested: it does not show the outcome of later ones.
func (w *staleness) listed(unknown int, now time.Time) {
	w.resolved, w.event = unknown, now
}

// unresolved reports whether an eviction may have been accepted although its answer
// did not say so.
func (w staleness) unresolved() bool { return w.unknown > w.resolved }

// relistAt returns when the node's pods have to be listed; zero = now.
func (w staleness) relistAt(podsRemain bool) time.Time {
	if w.unresolved() || !podsRemain {
		return time.Time{}
	}
	return w.event.Add(relistAfter)
}

// probeAt returns when an eviction may be requested that the pod's only budget does not
// allow, as far as the watch and the ledger show.
func (w staleness) probeAt(b *policy.PodDisruptionBudget, balance cluster.Balance) time.Time {
	delay := min(firstProbe<<min(balance.Probes, 10), lastProbe)
	at := balance.Since.Add(time.Duration(float64(delay) * (1 + probeJitter*(2*balance.Jitter-1))))
	if b.Status.DisruptionsAllowed > 0 || b.Status.ObservedGeneration < b.Generation {
		return at
	}
	return later(at, w.budgetEvent.Add(budgetsFreshFor))
}

// conflictProbeAt returns when an eviction may be requested that the API server refuses
// because several budgets match the pod, as far as the watch shows.
func (w staleness) conflictProbeAt() time.Time { return w.budgetEvent.Add(budgetsFreshFor) }
