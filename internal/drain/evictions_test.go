package drain

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"ebb/internal/cluster"
)

// evictionCase is a situation and what next decides about evictions in it.
type evictionCase struct {
	pods   []pod
	change func(*snapshot)
	evict  []string      // names; "?" behind one = a probe
	held   []string      // "name: what is said"
	wake   time.Duration // from now; 0 = nothing comes before the watch or the attempt is too old
}

func (c evictionCase) run(t *testing.T) {
	s := situation(c.pods...)
	if c.change != nil {
		c.change(&s)
	}
	d := next(s, now)
	require.Equal(t, goOn, d.verdict.outcome)
	require.Equal(t, c.evict, evictedIn(s, d))
	require.ElementsMatch(t, c.held, heldIn(s, d))
	if c.wake == 0 {
		c.wake = min(relistAfter, s.deadline.Sub(now))
		if s.reading {
			c.wake = s.deadline.Sub(now)
		}
	}
	require.Equal(t, c.wake, d.wake.Sub(now))
}

// nameOf returns the name of a pod of the snapshot.
func nameOf(s snapshot, uid types.UID) string {
	for _, p := range s.pods {
		if p.UID == uid {
			return p.Name
		}
	}
	return ""
}

func evictedIn(s snapshot, d decision) (names []string) {
	for _, e := range d.evict {
		name := nameOf(s, e.pod)
		if e.probe {
			name += "?"
		}
		names = append(names, name)
	}
	return names
}

func heldIn(s snapshot, d decision) (texts []string) {
	for _, h := range d.held {
		text := h.message
		if text == "" {
			text = budgetNames(h.budgets)
		}
		texts = append(texts, nameOf(s, h.pod)+": "+text)
	}
	return texts
}

func TestNextEvictsAsBudgetsAllow(t *testing.T) {
	one, two := allowing("x", 1), allowing("x", 2)
	for name, c := range map[string]evictionCase{
		"all at once without budgets": {pods: []pod{tracked("a"), tracked("b")}, evict: []string{"a", "b"}},
		"critical pods wait for the others": {
			pods: []pod{tracked("a", isCritical), tracked("b")}, evict: []string{"b"}},
		"critical pods wait while the others terminate": {
			pods: []pod{tracked("a", isCritical), tracked("b", terminatingFor(-10*time.Second))}},
		"critical pods go when the others have gone": {pods: []pod{tracked("a", isCritical), tracked("b", gone)}, evict: []string{"a"}},
		"no pod that is terminating, in flight, evicted or not waited for": {
			pods: []pod{tracked("a", terminatingFor(-10*time.Second)), tracked("b", inFlight), tracked("c", func(p *pod) { p.accepted = true }),
				tracked("d", func(p *pod) { p.skipped = true })}},
		"no more at once than the settings allow": {
			pods: []pod{tracked("a"), tracked("b"), tracked("c"), tracked("d", inFlight)}, change: func(s *snapshot) { s.settings.Parallel, s.inFlight = 3, 1 },
			evict: []string{"a", "b"}},
		"no more than the budget allows": {
			pods: []pod{tracked("a", under(two)), tracked("b", under(two)), tracked("c", under(two))}, evict: []string{"a", "b"},
			held: []string{"c: app/x"}},
		"what other drains have reserved counts": {
			pods: []pod{tracked("a", under(two)), tracked("b", under(two))}, change: func(s *snapshot) { s.balances["uid-x"] = cluster.Balance{Available: 1, Since: now} },
			evict: []string{"a"}, held: []string{"b: app/x"}},
		"the budget that takes most rounds first": {
			pods: []pod{tracked("a", under(allowing("wide", 2)), func(p *pod) { p.matching[0].Status.DesiredHealthy = 1 }),
				tracked("b", under(one)), tracked("c", under(one))},
			change: func(s *snapshot) { s.settings.Parallel = 1 }, evict: []string{"b"}, held: []string{"c: app/x"}},
	} {
		t.Run(name, c.run)
	}
}

func TestNextProbesBudgets(t *testing.T) {
	none, one, other, never := allowing("x", 0), allowing("x", 1), allowing("y", 0), neverAllowing("x")
	for name, c := range map[string]evictionCase{
		"a budget that allows nothing is probed later": {
			pods: []pod{tracked("a", under(none))}, held: []string{"a: app/x"}, wake: firstProbe},
		"after a probe still later": {
			pods: []pod{tracked("a", under(none))}, change: func(s *snapshot) { s.balances["uid-x"] = cluster.Balance{Probes: 1, Since: now, Jitter: 0.5} },
			held: []string{"a: app/x"}, wake: 2 * firstProbe},
		"a probe is of one pod": {
			pods:   []pod{tracked("a", under(none)), tracked("b", under(none))},
			change: func(s *snapshot) { s.balances["uid-x"] = cluster.Balance{Since: now.Add(-firstProbe), Jitter: 0.5} },
			evict:  []string{"a?"}, held: []string{"a: app/x", "b: app/x"}},
		"no probe beside an eviction that the budget allows": {
			pods:   []pod{tracked("a", under(one)), tracked("b", under(one))},
			change: func(s *snapshot) { s.balances["uid-x"] = cluster.Balance{Available: 1, Since: now.Add(-time.Minute)} },
			evict:  []string{"a"}, held: []string{"b: app/x"}},
		"no probe while the watch shows changes of other budgets": {
			pods: []pod{tracked("a", under(none))}, change: func(s *snapshot) {
				s.balances["uid-x"] = cluster.Balance{Since: now.Add(-time.Minute)}
				s.stale.budgetEvent = now.Add(-time.Second)
			}, held: []string{"a: app/x"}, wake: budgetsFreshFor - time.Second},
		"changes of other budgets say nothing of one that allows an eviction which was refused": {
			pods: []pod{tracked("a", under(one))}, change: func(s *snapshot) {
				s.balances["uid-x"] = cluster.Balance{Since: now.Add(-firstProbe), Jitter: 0.5}
				s.stale.budgetEvent = now
			}, evict: []string{"a?"}, held: []string{"a: app/x"}},
		"a pod of two budgets is probed when the watch is silent about budgets": {
			pods: []pod{tracked("a", under(one, other))}, evict: []string{"a?"}, held: []string{"a: app/x, app/y"}},
		"each pod of a budget that never allows an eviction is asked for once, at once: a webhook may wait for it": {
			pods:   []pod{tracked("a", under(never), asked), tracked("b", under(never)), tracked("c", under(never))},
			change: func(s *snapshot) { s.stale.budgetEvent = now },
			evict:  []string{"b?", "c?"}, held: []string{"a: app/x", "b: app/x", "c: app/x"}, wake: budgetsFreshFor},
		"a pod of two budgets is not probed while the watch shows changes of budgets": {
			pods: []pod{tracked("a", under(one, other))}, change: func(s *snapshot) { s.stale.budgetEvent = now },
			held: []string{"a: app/x, app/y"}, wake: budgetsFreshFor},
	} {
		t.Run(name, c.run)
	}
}

func TestNextEvictsAfterRefusalsAndWhileTheAPIServerTakesThem(t *testing.T) {
	none, one, other := allowing("x", 0), allowing("x", 1), allowing("y", 0)
	for name, c := range map[string]evictionCase{
		"500 for two budgets: tried again after a delay": {
			pods: []pod{tracked("a", under(one, other), refused("more than one PodDisruptionBudget", 4*time.Second), func(p *pod) { p.conflict = true })},
			held: []string{"a: more than one PodDisruptionBudget"}, wake: 4 * time.Second},
		"500 for two budgets: evicted at once when only one matches any more": {
			pods:  []pod{tracked("a", under(one), refused("more than one PodDisruptionBudget", 4*time.Second), func(p *pod) { p.conflict = true })},
			evict: []string{"a"}},
		"a refusal that no budget explains delays the next eviction": {
			pods: []pod{tracked("a", refused("webhook", 2*time.Second)), tracked("b")}, evict: []string{"b"}, held: []string{"a: webhook"}, wake: 2 * time.Second},
		"a refusal stands until the next answer": {
			pods: []pod{tracked("a", refused("webhook", 0))}, evict: []string{"a"}, held: []string{"a: webhook"}},
		"a refusal stands while the next eviction is in flight": {
			pods: []pod{tracked("a", refused("webhook", 0), inFlight)}, held: []string{"a: webhook"}},
		"a probe in flight is expected to be refused": {
			pods: []pod{tracked("a", under(none), inFlight, func(p *pod) { p.probe = true })}, held: []string{"a: app/x"}},
		"a pod that has come back is given time": {
			pods: []pod{tracked("a", notBefore(3*time.Second))}, wake: 3 * time.Second},
		"a namespace that is being deleted ends its pods": {
			pods: []pod{tracked("a", under(none))}, change: func(s *snapshot) { s.terminating["app"] = true },
			held: []string{"a: its namespace is being deleted, which will end it"}},
		"nothing while the API server is overloaded": {
			pods: []pod{tracked("a"), tracked("b", under(none))}, change: func(s *snapshot) { s.api.throttled(2*time.Second, "too many requests", now) },
			held: []string{"b: app/x"}, wake: 2 * time.Second},
		"nothing while the API server does not answer": {
			pods: []pod{tracked("a")}, change: func(s *snapshot) { s.api.failed(assert.AnError, 0, now, 0) }, wake: firstAPIRetry},
		"nothing while the outcome of an eviction is unknown": {
			pods: []pod{tracked("a")}, change: func(s *snapshot) { s.stale.unknown, s.reading = 1, true }},
		"nothing before the node is known to be cordoned": {
			pods: []pod{tracked("a")}, change: func(s *snapshot) { s.cordon, s.reading = cordonUnknown, true }},
	} {
		t.Run(name, c.run)
	}
}
