package drain

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"ebb/internal/cluster"
)

var now = time.Unix(1_700_000_000, 0)

// situation returns a snapshot of a cordoned node with these pods in the tenth second of an
// attempt of a minute. The watch has just shown an event, and no budget has changed yet.
func situation(pods ...pod) snapshot {
	n := cordonedNode()
	s := snapshot{
		settings: Settings{WaitForVolumeDetach: true, DeleteEmptyDir: true}.withDefaults(), name: node,
		started: now.Add(-10 * time.Second), deadline: now.Add(50 * time.Second), node: n, pods: pods,
		balances: map[types.UID]cluster.Balance{}, terminating: map[string]bool{}, neighbours: map[string]neighbourhood{},
	}
	s.cordon, s.stale.event = cordonShown, now
	for i := range pods {
		s.pods[i].action = actionFor(s.pods[i].Pod, s.settings, func(_, _ string) bool { return true })
		for _, b := range pods[i].matching { // the ledger holds nothing that the status does not
			s.balances[b.UID] = cluster.Balance{Available: int(b.Status.DisruptionsAllowed), Since: now, Jitter: 0.5}
		}
	}
	return s
}

// tracked returns the pod of that name, with what has happened to it.
func tracked(name string, happened ...func(*pod)) pod {
	p := pod{Pod: newPod(name)}
	for _, f := range happened {
		f(&p)
	}
	return p
}

// allowing returns a budget of three pods, of which so many may be evicted now.
func allowing(name string, n int32) pdb {
	b := budget(name, maxUnavailable(1))
	b.Status = policy.PodDisruptionBudgetStatus{ObservedGeneration: 1, DisruptionsAllowed: n, ExpectedPods: 3, DesiredHealthy: 2, CurrentHealthy: 2 + n}
	return pdb{PodDisruptionBudget: b, selector: labels.Everything()}
}

// neverAllowing returns a budget of three pods that requires all of them.
func neverAllowing(name string) pdb {
	b := allowing(name, 0)
	b.Status.DesiredHealthy, b.Status.CurrentHealthy = b.Status.ExpectedPods, b.Status.ExpectedPods
	return b
}

func under(budgets ...pdb) func(*pod)      { return func(p *pod) { p.matching = budgets } }
func inFlight(p *pod)                      { p.inFlight = true }
func asked(p *pod)                         { p.requested = true }
func isCritical(p *pod)                    { p.Spec.PriorityClassName = "system-cluster-critical" }
func gone(p *pod)                          { p.gone = true }
func bare(p *pod)                          { p.OwnerReferences = nil }
func notBefore(d time.Duration) func(*pod) { return func(p *pod) { p.notBefore = now.Add(d) } }

// terminatingFor returns what makes the grace period of a pod have ended so long ago.
func terminatingFor(d time.Duration) func(*pod) {
	return func(p *pod) { at := meta.NewTime(now.Add(-d)); p.DeletionTimestamp = &at }
}

func refused(message string, d time.Duration) func(*pod) {
	return func(p *pod) { p.refusal, p.refusals, p.notBefore = message, 1, now.Add(d) }
}

// verdictCase is a situation and the verdict of next on it.
type verdictCase struct {
	pods    []pod
	change  func(*snapshot)
	outcome outcome
	cause   error
	reason  string // a part of it, or of the warning
	blocked int
	gone    bool // the node
}

func (c verdictCase) run(t *testing.T) {
	s := situation(c.pods...)
	if c.change != nil {
		c.change(&s)
	}
	d := next(s, now)
	require.Equal(t, c.outcome, d.verdict.outcome)
	require.Equal(t, c.cause, d.verdict.cause)
	require.Contains(t, d.verdict.reason+d.verdict.warning, c.reason)
	require.Len(t, d.verdict.blocked, c.blocked)
	require.Equal(t, c.gone, d.verdict.nodeGone)
	if c.outcome != goOn {
		require.Empty(t, d.evict)
	}
}

func TestNextVerdictWhilePodsRemain(t *testing.T) {
	endless := workload{name: "app/ReplicaSet/web", initial: 1, recreated: maxRecreations, since: now.Add(-time.Second)}
	for name, c := range map[string]verdictCase{
		"goes on": {pods: []pod{tracked("a")}},
		"forbidden by the settings, before anything is evicted": {pods: []pod{tracked("a"), tracked("b", bare)},
			outcome: failed, cause: ErrForbidden, reason: "1 pods may not be evicted with these settings", blocked: 1},
		"a forbidden pod that has gone is none": {pods: []pod{tracked("a"), tracked("b", bare, gone)}},
		"uncordoned in the middle": {pods: []pod{tracked("a")}, change: func(s *snapshot) { s.node.Spec.Unschedulable = false },
			outcome: failed, cause: ErrUncordoned, reason: "somebody uncordoned the node"},
		"the watch may not show the cordon yet": {pods: []pod{tracked("a")}, change: func(s *snapshot) {
			s.node.Spec.Unschedulable, s.cordon = false, cordonRead
		}},
		"not cordoned at all": {pods: []pod{tracked("a", bare)}, change: func(s *snapshot) { s.node.Spec.Unschedulable, s.cordon = false, notCordoned },
			outcome: failed, cause: ErrUncordoned, reason: "cordon it first"},
		"settings are not looked at before the cordon": {pods: []pod{tracked("a", bare)}, change: func(s *snapshot) { s.cordon = cordonUnknown }},
		"the node object is deleted":                   {pods: []pod{tracked("a")}, change: func(s *snapshot) { s.node = nil }, outcome: done, gone: true},
		"there is no such node":                        {change: func(s *snapshot) { s.node, s.cordon = nil, nodeNotFound }, outcome: done, gone: true},
		"deadline": {pods: []pod{tracked("a")}, change: func(s *snapshot) { s.deadline = now },
			outcome: failed, cause: ErrTimeout, reason: "not empty after 10s"},
		"no time was left when it began": {pods: []pod{tracked("a")}, change: func(s *snapshot) { s.started, s.deadline = now, now },
			outcome: failed, cause: ErrTimeout, reason: "no time was left"},
		"pods that tolerate the cordon come back": {pods: []pod{tracked("a")},
			change: func(s *snapshot) {
				w := endless
				w.tolerates, s.settings.FailReturning = true, true
				s.workloads = []workload{w}
			},
			outcome: failed, cause: ErrRecreated, reason: "have come back to the cordoned node 3 times", blocked: 1},
		"a scheduler may not have heard of the cordon": {pods: []pod{tracked("a")}, change: func(s *snapshot) { s.workloads = []workload{endless} }},
		"a scheduler has had time to hear of the cordon": {pods: []pod{tracked("a")},
			change: func(s *snapshot) {
				w := endless
				w.since, s.settings.FailReturning = now.Add(-schedulerLag), true
				s.workloads = []workload{w}
			},
			outcome: failed, cause: ErrRecreated, blocked: 1},
	} {
		t.Run(name, c.run)
	}
}

func TestNextLeavesPodsThatComeBack(t *testing.T) {
	returned := func(p *pod) { p.returned = true }
	tolerant := func(p *pod) { p.Spec.Tolerations = []core.Toleration{{Operator: core.TolerationOpExists}} }
	terminating := terminatingFor(-time.Second)
	fresh := workload{name: "app/ReplicaSet/web", initial: 1, recreated: 1, since: now}
	endless := workload{name: "app/ReplicaSet/web", initial: 1, recreated: maxRecreations, since: now.Add(-schedulerLag)}
	for name, c := range map[string]struct {
		pod      pod
		workload workload
		fail     bool
		leaves   bool
	}{
		"it tolerates the cordon":                      {pod: tracked("a", returned, tolerant), workload: fresh, leaves: true},
		"it was there before":                          {pod: tracked("a", tolerant), workload: fresh},
		"a scheduler may be behind":                    {pod: tracked("a", returned), workload: fresh},
		"it is bound to the node all the same":         {pod: tracked("a", returned), workload: endless, leaves: true},
		"it was there before the others returned":      {pod: tracked("a"), workload: endless},
		"it is terminating, so it is waited for":       {pod: tracked("a", returned, tolerant, terminating), workload: fresh},
		"it is being evicted":                          {pod: tracked("a", returned, tolerant, inFlight), workload: fresh},
		"its eviction was accepted":                    {pod: tracked("a", returned, tolerant, func(p *pod) { p.accepted = true }), workload: fresh},
		"drain.returning: fail, and it is not endless": {pod: tracked("a", returned, tolerant), workload: fresh, fail: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := situation(c.pod)
			s.workloads, s.settings.FailReturning = []workload{c.workload}, c.fail
			d := next(s, now)
			if c.leaves {
				require.Equal(t, []types.UID{"uid-a"}, d.leave)
				require.Empty(t, d.evict, "nothing else is decided")
				return
			}
			require.Empty(t, d.leave)
		})
	}
}

func TestNextVerdictOnceTheyHaveLeft(t *testing.T) {
	empty := func(s *snapshot) { s.emptied = now.Add(-5 * time.Second) }
	for name, c := range map[string]verdictCase{
		"pods have left, but no list has shown it": {pods: []pod{tracked("a", gone)}},
		"empty":                               {pods: []pod{tracked("a", gone)}, change: empty, outcome: done},
		"empty at the deadline":               {change: func(s *snapshot) { empty(s); s.deadline = now }, outcome: done},
		"uncordoned when it is empty already": {change: func(s *snapshot) { empty(s); s.node.Spec.Unschedulable = false }, outcome: done},
		"volumes are waited for":              {change: func(s *snapshot) { empty(s); s.volumes = []string{"pv"} }},
		"volumes are not waited for when that is switched off": {change: func(s *snapshot) {
			empty(s)
			s.volumes, s.settings.WaitForVolumeDetach = []string{"pv"}, false
		}, outcome: done},
		"volumes are waited for as long as the settings say": {change: func(s *snapshot) {
			empty(s)
			s.volumes, s.settings.VolumeDetachTimeout = []string{"pv"}, 5*time.Second
		}, outcome: done, reason: "volumes still attached to node w1 after its pods have ended: pv"},
		"volumes are waited for until the deadline": {change: func(s *snapshot) { empty(s); s.volumes, s.deadline = []string{"pv"}, now },
			outcome: done, reason: "still attached"},
	} {
		t.Run(name, c.run)
	}
}

func TestNextLooksAgainWhenVolumesAreNotWaitedForAnyLonger(t *testing.T) {
	s := situation(tracked("a", gone))
	s.emptied, s.volumes, s.settings.VolumeDetachTimeout = now.Add(-5*time.Second), []string{"pv"}, 20*time.Second
	require.Equal(t, 15*time.Second, next(s, now).wake.Sub(now))
	s.deadline = now.Add(time.Second)
	require.Equal(t, time.Second, next(s, now).wake.Sub(now))
}

func TestNextRead(t *testing.T) {
	for name, c := range map[string]struct {
		pods   []pod
		change func(*snapshot)
		want   read
		wake   time.Duration // 0 = the deadline
	}{
		"nothing while the watch lives": {pods: []pod{tracked("a", terminatingFor(-time.Minute))}, wake: relistAfter},
		"a silent watch":                {pods: []pod{tracked("a")}, change: func(s *snapshot) { s.stale.event = now.Add(-relistAfter) }, want: readPods},
		"an eviction without a known outcome": {pods: []pod{tracked("a")}, change: func(s *snapshot) { s.stale.unknown = 1 },
			want: readPods},
		"an outcome that a list has shown since":              {pods: []pod{tracked("a", inFlight)}, change: func(s *snapshot) { s.stale.unknown, s.stale.resolved = 1, 1 }, wake: relistAfter},
		"the watch shows no pod any more":                     {pods: []pod{tracked("a", gone)}, want: readPods},
		"the node may be empty, but an eviction is in flight": {pods: []pod{tracked("a", gone)}, change: func(s *snapshot) { s.inFlight = 1 }, wake: relistAfter},
		"one read at a time":                                  {pods: []pod{tracked("a", gone)}, change: func(s *snapshot) { s.reading = true }},
		"an overloaded API server is not asked": {pods: []pod{tracked("a", gone)},
			change: func(s *snapshot) { s.api.throttled(2*time.Second, "busy", now) }, wake: 2 * time.Second},
		"an API server that did not answer is asked again": {pods: []pod{tracked("a")},
			change: func(s *snapshot) { s.api.failed(assert.AnError, 0, now.Add(-time.Second), 0) }, want: readPods},
		"an API server that did not answer is not asked at once": {pods: []pod{tracked("a")}, change: func(s *snapshot) { s.api.failed(assert.AnError, 0, now, 0) }, wake: firstAPIRetry},
		"the watch shows no cordon": {pods: []pod{tracked("a")}, change: func(s *snapshot) { s.cordon = cordonUnknown },
			want: readNode},
	} {
		t.Run(name, func(t *testing.T) {
			s := situation(c.pods...)
			if c.change != nil {
				c.change(&s)
			}
			d := next(s, now)
			require.Equal(t, c.want, d.read)
			if c.wake == 0 {
				c.wake = s.deadline.Sub(now)
			}
			require.Equal(t, c.wake, d.wake.Sub(now))
		})
	}
}

func TestNextSkipsTerminatingPodsOfANodeThatIsDown(t *testing.T) {
	down := func(s *snapshot) {
		s.node.Status.Conditions = []core.NodeCondition{{Type: core.NodeReady, Status: core.ConditionUnknown}}
	}
	limit := func(s *snapshot) { s.settings.SkipWaitForDelete = 5 * time.Second }
	for name, c := range map[string]struct {
		overdue time.Duration
		change  []func(*snapshot)
		want    bool
		wake    time.Duration
	}{
		"past the limit":                 {5 * time.Second, []func(*snapshot){limit, down}, true, 0},
		"not yet":                        {4 * time.Second, []func(*snapshot){limit, down}, false, time.Second},
		"never by default":               {time.Hour, []func(*snapshot){down}, false, relistAfter},
		"never on a node that is up":     {time.Hour, []func(*snapshot){limit}, false, relistAfter},
		"past it by the cluster's clock": {2 * time.Second, []func(*snapshot){limit, down, func(s *snapshot) { s.ahead = 3 * time.Second }}, true, 0},
		"not yet by the cluster's clock": {time.Minute, []func(*snapshot){limit, down, func(s *snapshot) { s.ahead = -56 * time.Second }}, false, time.Second},
		"the machine is known to be off": {5 * time.Second, []func(*snapshot){limit, func(s *snapshot) { s.machineDown = true }}, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := situation(tracked("a", terminatingFor(c.overdue)), tracked("b"))
			for _, f := range c.change {
				f(&s)
			}
			d := next(s, now)
			if c.want {
				require.Equal(t, decision{skip: []types.UID{"uid-a"}}, d, "the rest is decided without it")
				return
			}
			require.Empty(t, d.skip)
			require.Equal(t, c.wake, d.wake.Sub(now))
		})
	}
}

func TestNextChangesNothingAndIsTheSameEachTime(t *testing.T) {
	s := situation(tracked("c", under(allowing("x", 1))), tracked("a", under(allowing("x", 1))), tracked("b", refused("webhook", time.Second)))
	first := next(s, now)
	require.Equal(t, first, next(s, now))
	require.Equal(t, first, next(s, now))
}

func TestProgressNamesWhatBlocks(t *testing.T) {
	held := allowing("x", 0)
	finalizer := func(p *pod) { p.Finalizers = []string{"example.com/hold"} }
	s := situation(tracked("a", under(held)), tracked("b", refused("webhook", time.Second)), tracked("c", terminatingFor(10*time.Second), finalizer),
		tracked("d", terminatingFor(-20*time.Second)), tracked("e", isCritical), tracked("f", gone, func(p *pod) { p.accepted = true }), tracked("g"))
	s.api.throttled(2*time.Second, "busy", now)
	p := s.progress(now)
	require.Equal(t, []int{7, 1, 1, 6}, []int{p.Total, p.Evicted, p.Gone, p.Waiting})
	var said []string
	for _, b := range p.Blocked {
		said = append(said, b.String())
	}
	require.Equal(t, []string{
		"app/a blocked by budget app/x: needs 2 healthy pods and has 2",
		"app/b: webhook",
		"app/c: still terminating 10s after its grace period; finalizers: example.com/hold; node Ready: True" +
			" (find out why the owner of the finalizer does not take it away)",
		"app/g: the API server has too much to do, trying again in 2s: busy",
	}, said)
	said = nil
	for _, b := range s.remaining(now) {
		said = append(said, b.String())
	}
	require.Len(t, said, 6)
	require.Equal(t, "app/d: terminating, 20s of its grace period left", said[3])
	require.Equal(t, "app/e: not evicted yet: critical pods go after all others have ended", said[4])
}
