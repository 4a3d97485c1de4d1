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

// testLedger is a ledger and the pods that its watch shows terminating.
func testLedger() (l *Ledger, leaving map[string]bool, wakes *int) {
	leaving, wakes = map[string]bool{}, new(int)
	return newLedger(func(p PodRef) bool { return leaving[p.Name] }, func() { *wakes++ }), leaving, wakes
}

func take(l *Ledger, b *policy.PodDisruptionBudget, pod string, at time.Time) bool {
	ok, _ := l.Take(b, ref(pod), at)
	return ok
}

func TestLedgerGivesNoMoreThanTheStatusAllows(t *testing.T) {
	l, _, _ := testLedger()
	v1 := webBudget("1", 2)
	require.True(t, take(l, v1, "a", start))
	require.True(t, take(l, v1, "b", start))
	ok, again := l.Take(v1, ref("c"), start)
	require.False(t, ok)
	require.GreaterOrEqual(t, again.Sub(start), time.Second)
	require.LessOrEqual(t, again.Sub(start), 10*time.Second)

	l.Granted(webKey, ref("a").UID)
	require.False(t, take(l, v1, "c", start), "granted, but the watch does not show it yet")
	v2 := webBudget("2", 1, "a")
	require.False(t, take(l, v2, "c", start), "one left, and that is for b")
	v3 := webBudget("3", 0, "a", "b")
	require.False(t, take(l, v3, "c", start))
	v4 := webBudget("4", 1)
	require.True(t, take(l, v4, "c", start), "a replacement became ready")
}

func TestLedgerSeesAnEvictionInTheStatusOrInThePod(t *testing.T) {
	l, leaving, _ := testLedger()
	require.True(t, take(l, webBudget("1", 1), "a", start))
	l.Granted(webKey, ref("a").UID)
	unrelated := webBudget("2", 1)
	require.False(t, take(l, unrelated, "b", start), "a change that does not hold the eviction yet")
	leaving["a"] = true
	require.True(t, take(l, webBudget("3", 1), "b", start), "the versions between were not seen; the pod terminates, so it is in")
}

func TestLedgerTakesBackWhatWasRefused(t *testing.T) {
	l, _, wakes := testLedger()
	v1 := webBudget("1", 1)
	require.True(t, take(l, v1, "a", start))
	l.Refused(webKey, ref("a").UID, false)
	require.Equal(t, 1, *wakes)
	require.True(t, take(l, v1, "b", start), "a refusal for another reason leaves the allowance to others")

	l.Refused(webKey, ref("b").UID, true)
	require.False(t, take(l, v1, "c", start), "the API server knows better than this version")
	require.True(t, take(l, webBudget("2", 1), "c", start))
}

func TestLedgerAsksNowAndThenAllTheSame(t *testing.T) {
	l, _, _ := testLedger()
	none := webBudget("1", 0)
	var asked []time.Duration
	for at := start; at.Before(start.Add(time.Minute)); at = at.Add(100 * time.Millisecond) {
		if take(l, none, "a", at) {
			asked = append(asked, at.Sub(start))
			l.Refused(webKey, ref("a").UID, true)
		}
	}
	require.GreaterOrEqual(t, len(asked), 6)
	require.LessOrEqual(t, len(asked), 12)

	changed := webBudget("2", 0)
	require.False(t, take(l, changed, "a", start.Add(time.Minute)), "a change shows that the watch lives")
}

func TestLedgerWaitsForTheDisruptionController(t *testing.T) {
	l, _, _ := testLedger()
	edited := webBudget("1", 1)
	edited.Generation = 2
	require.False(t, take(l, edited, "a", start), "the status is that of the budget before it was edited")
}

func TestLedgerForgets(t *testing.T) {
	l, _, wakes := testLedger()
	v1 := webBudget("1", 1)
	require.True(t, take(l, v1, "a", start))
	require.False(t, take(l, v1, "b", start))
	l.Forget([]types.UID{ref("a").UID})
	require.Equal(t, 1, *wakes)
	require.True(t, take(l, v1, "b", start))
	l.Forget([]types.UID{ref("b").UID})
	require.Empty(t, l.accounts)
}
