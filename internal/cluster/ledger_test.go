package cluster

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var (
	webKey = types.NamespacedName{Namespace: "app", Name: "web"}
	start  = time.Unix(1_700_000_000, 0)
)

// webBudget is the budget as the watch shows it at a version.
func webBudget(version string, allowed int32, disrupted ...string) *policy.PodDisruptionBudget {
	b := &policy.PodDisruptionBudget{
		ObjectMeta: meta.ObjectMeta{Namespace: "app", Name: "web", ResourceVersion: version, Generation: 1},
		Status:     policy.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed, ObservedGeneration: 1, DisruptedPods: map[string]meta.Time{}},
	}
	for _, pod := range disrupted {
		b.Status.DisruptedPods[pod] = meta.Time{}
	}
	return b
}

func ref(name string) PodRef {
	return PodRef{Namespace: "app", Name: name, UID: types.UID("uid-" + name)}
}

// watched is a ledger and what its watch shows.
type watched struct {
	*Ledger
	budget      *policy.PodDisruptionBudget
	terminating map[string]bool // pods
	notified    int
}

func testLedger() *watched {
	w := &watched{terminating: map[string]bool{}}
	w.Ledger = newLedger(func(types.NamespacedName) *policy.PodDisruptionBudget { return w.budget },
		func(p PodRef) bool { return w.terminating[p.Name] }, func() { w.notified++ })
	return w
}

// reserve is Reserve when the watch shows the budget b.
func (w *watched) reserve(b *policy.PodDisruptionBudget, pod string) bool {
	w.budget = b
	return w.Reserve(webKey, ref(pod), start)
}

func TestLedgerReservesNoMoreThanTheStatusAllows(t *testing.T) {
	l := testLedger()
	v1 := webBudget("1", 2)
	require.True(t, l.reserve(v1, "a"))
	require.True(t, l.reserve(v1, "b"))
	require.False(t, l.reserve(v1, "c"))
	require.Zero(t, l.Balance(webKey, start).Available)

	l.Commit(webKey, ref("a").UID)
	require.False(t, l.reserve(v1, "c"), "accepted, but the watch does not show it yet")
	v2 := webBudget("2", 1, "a")
	require.False(t, l.reserve(v2, "c"), "one left, and that is for b")
	v3 := webBudget("3", 0, "a", "b")
	require.False(t, l.reserve(v3, "c"))
	v4 := webBudget("4", 1)
	require.True(t, l.reserve(v4, "c"), "a replacement became ready")
}

func TestLedgerSeesAnEvictionInTheStatusOrInThePod(t *testing.T) {
	l := testLedger()
	require.True(t, l.reserve(webBudget("1", 1), "a"))
	l.Commit(webKey, ref("a").UID)
	unrelated := webBudget("2", 1)
	require.False(t, l.reserve(unrelated, "b"), "a change that does not hold the eviction yet")
	l.terminating["a"] = true
	require.True(t, l.reserve(webBudget("3", 1), "b"), "the versions between were not seen; the pod terminates, so it is in")
}

func TestLedgerAbort(t *testing.T) {
	l := testLedger()
	v1 := webBudget("1", 1)
	require.True(t, l.reserve(v1, "a"))
	l.Abort(webKey, ref("a").UID, false)
	require.Equal(t, 1, l.notified)
	require.True(t, l.reserve(v1, "b"), "a refusal for another reason leaves the allowance to others")

	l.Abort(webKey, ref("b").UID, true)
	require.False(t, l.reserve(v1, "c"), "the API server knows better than this version")
	require.True(t, l.reserve(webBudget("2", 1), "c"))
}

func TestLedgerProbesOncePerBalance(t *testing.T) {
	l := testLedger()
	l.budget = webBudget("1", 0)
	seen := l.Balance(webKey, start)
	require.Zero(t, seen.Available)
	require.Zero(t, seen.Probes)
	require.Equal(t, start, seen.Since)
	require.True(t, l.Probe(webKey, ref("a"), seen, start.Add(time.Second)))
	require.False(t, l.Probe(webKey, ref("b"), seen, start.Add(time.Second)), "another drain has been faster")

	seen = l.Balance(webKey, start.Add(2*time.Second))
	require.Equal(t, -1, seen.Available, "the probe is in flight")
	require.Equal(t, 1, seen.Probes)
	require.Equal(t, start.Add(time.Second), seen.Since)
	l.Abort(webKey, ref("a").UID, true)
	require.True(t, l.Probe(webKey, ref("b"), seen, start.Add(3*time.Second)))

	seen = l.Balance(webKey, start.Add(4*time.Second))
	l.budget = webBudget("2", 0)
	require.False(t, l.Probe(webKey, ref("c"), seen, start.Add(5*time.Second)), "the budget has changed meanwhile")
	seen = l.Balance(webKey, start.Add(6*time.Second))
	require.Zero(t, seen.Probes, "a change shows that the watch lives")
	require.Equal(t, start.Add(5*time.Second), seen.Since)

	l.budget = nil
	require.Zero(t, l.Balance(webKey, start))
	require.False(t, l.Reserve(webKey, ref("c"), start), "it is gone: decide anew")
}

func TestLedgerWaitsForTheDisruptionController(t *testing.T) {
	l := testLedger()
	edited := webBudget("1", 1)
	edited.Generation = 2
	require.False(t, l.reserve(edited, "a"), "the status is that of the budget before it was edited")
}

func TestLedgerForgets(t *testing.T) {
	l := testLedger()
	v1 := webBudget("1", 1)
	require.True(t, l.reserve(v1, "a"))
	require.False(t, l.reserve(v1, "b"))
	l.Forget([]types.UID{ref("a").UID})
	require.Equal(t, 1, l.notified)
	require.True(t, l.reserve(v1, "b"))
	l.Forget([]types.UID{ref("b").UID})
	require.Empty(t, l.accounts)
}
