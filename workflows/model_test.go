package workflows

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/plan"
)

// model is a cluster in memory, in simulated time: what the modelled activities
// read and write, and what the invariants look at. Everything that happens to it
// is an event in its log, and every invariant looks at every event.
type model struct {
	s     *scenario
	clock time.Time
	calm  bool // nothing goes wrong on a node any more

	operation string            // the one that runs
	takenOver string            // the dead one whose place it took
	aim       string            // of an upgrade: what it is on its way to
	settings  activities.Survey // that it works with

	nodes     map[string]*modelNode
	store     *clusterstate.Store
	alive     map[string]bool // holders whose workflow runs
	runs      map[string]*scriptRun
	drains    map[string]time.Time // end of the drain attempts that were begun
	due       []dueEvent
	destroyed map[string]bool
	looks     int  // at etcd
	resting   bool // the reconciler's schedule is paused
	sawSound  bool // the reconciler looked last when it had the cluster, and that was sound

	log        []event
	violations []string
}

// modelNode is a node, and what its plan.Node does not say.
type modelNode struct {
	plan.Node
	by      string    // who made it unschedulable
	readyAt time.Time // when it will be Ready; zero = not foreseen
	down    bool
	gone    bool
}

// scriptRun is a script on a node: detached, so that it goes on whoever follows it.
type scriptRun struct {
	node, phase string
	end         time.Time
	exit        int
}

type dueEvent struct {
	at time.Time
	do func()
}

// event is one thing that happened. What it was is one of the constants below.
type event struct {
	at       time.Time
	what     string
	op, node string
	detail   string
}

// Kinds of events.
const (
	eClaimed    = "claimed"
	eReleased   = "released"
	eCordoned   = "cordoned"
	eUncordoned = "uncordoned"
	eOperator   = "operator uncordoned"
	eDrainBegan = "drain began"
	eDrained    = "drained"
	eDrainEnded = "drain ended without success"
	eStaged     = "staged"
	eScript     = "upgrade script began"
	eScriptEnd  = "upgrade script ended"
	eReady      = "ready"
	eReset      = "reset"
	eDeleted    = "deleted"
	eDestroyed  = "destroyed"
	eRecorded   = "recorded"
	eJoined     = "joined"
	eAdvanced   = "hop complete"
	eEtcdWell   = "etcd is well"
	eEtcdSick   = "etcd is not well"
)

// What is wrong when it is drawn that something is.
const (
	noRoom     = "3 pods find no room"
	sickMember = "etcd member cp9 is not healthy"
)

func newModel(s *scenario) *model {
	m := &model{
		s: s, clock: epoch, settings: s.settings, nodes: map[string]*modelNode{}, alive: map[string]bool{livingHolder: true},
		runs: map[string]*scriptRun{}, drains: map[string]time.Time{}, destroyed: map[string]bool{},
	}
	for _, n := range s.nodes {
		m.nodes[n.Name] = &modelNode{Node: n, by: s.by[n.Name], down: s.down[n.Name]}
	}
	m.store = clusterstate.NewStore(&leaseClient{box: &leaseBox{}}, func() time.Time { return m.clock })
	if s.lease.State != clusterstate.Running || s.lease.Version != "" || s.lease.Holder != "" {
		m.writeLease(s.lease)
	}
	if s.joinsAt > 0 {
		m.later(epoch.Add(s.joinsAt), func() {
			n := plan.Node{Name: "late", UID: "u-late", Role: plan.Worker, Version: oldVersion, Ready: true, MachineID: "m-late", Created: m.clock}
			m.nodes[n.Name] = &modelNode{Node: n}
			m.happened(eJoined, "", n.Name, "")
		})
	}
	return m
}

// writeLease brings the cluster to a record through the store's own operations.
func (m *model) writeLease(r clusterstate.Record) {
	base := r.State
	if r.Holder != "" {
		base = r.From
	}
	through, left := clusterstate.Scaling, ""
	if base == clusterstate.Alert && r.Target != "" {
		through, left = clusterstate.Upgrading, r.Target
	}
	m.acquire("before-0", through, left)
	if _, err := m.store.Finish(context.Background(), clusterstate.Outcome{Operation: "before-0", To: base, Version: r.Version}); err != nil {
		panic(err)
	}
	if r.Holder != "" {
		m.acquire(r.Holder, r.State, r.Target)
	}
}

func (m *model) acquire(operation string, to clusterstate.State, upgradeTo string) {
	_, err := m.store.Acquire(context.Background(), clusterstate.Claim{
		Operation: operation, Engine: "engine/default", To: to,
		Accept: func(clusterstate.Record) (string, error) { return upgradeTo, nil },
	})
	if err != nil {
		panic(err)
	}
}

func (m *model) record() clusterstate.Record {
	r, err := m.store.Get(context.Background())
	if err != nil {
		panic(err)
	}
	return r
}

// later lets something happen when the clock gets there.
func (m *model) later(at time.Time, do func()) {
	m.due = append(m.due, dueEvent{at, do})
}

// advance moves the clock, and lets happen what is due, in order.
func (m *model) advance(now time.Time) {
	for {
		first := -1
		for i, e := range m.due {
			if !e.at.After(now) && (first < 0 || e.at.Before(m.due[first].at)) {
				first = i
			}
		}
		if first < 0 {
			break
		}
		e := m.due[first]
		m.due = slices.Delete(m.due, first, first+1)
		m.clock = e.at
		e.do()
	}
	m.clock = now
}

// happened writes an event down, and asks the invariants about it.
func (m *model) happened(what, op, node, detail string) {
	e := event{at: m.clock, what: what, op: op, node: node, detail: detail}
	m.log = append(m.log, e)
	for _, inv := range during {
		if problem := inv.check(m, e); problem != "" {
			m.violations = append(m.violations, fmt.Sprintf("%s: %s (%s)", inv.name, problem, inv.why))
		}
	}
}

// had reports whether the operation's log holds such an event on a node.
func (m *model) had(what, op, node string) bool { return m.last(what, op, node) >= 0 }

// last is the place of the newest such event, or -1. An empty op or node matches any.
func (m *model) last(what, op, node string) int {
	for i, e := range slices.Backward(m.log) {
		if e.what == what && (op == "" || e.op == op) && (node == "" || e.node == node) {
			return i
		}
	}
	return -1
}

// planned is the cluster as a survey sees it.
func (m *model) planned() []plan.Node {
	var nodes []plan.Node
	for _, n := range m.nodes {
		if !n.gone {
			nodes = append(nodes, n.Node)
		}
	}
	return plan.Sort(nodes)
}

func (m *model) machinesDown() (down []string) {
	for _, n := range m.planned() {
		if m.nodes[n.Name].down {
			down = append(down, n.Name)
		}
	}
	return down
}

func (m *model) dice(of ...any) *dice { return newDice(m.s.seed, of...) }

// goesWrong draws whether there is trouble on a node, so many times as often as usual.
func (m *model) goesWrong(d *dice, times float64) bool { return d.chance(m.s.trouble*times) && !m.calm }

// heal is the operator's work after a failure: machines run, nodes are Ready,
// control planes are schedulable, and what nobody could take back is taken back.
func (m *model) heal(operation string) {
	m.advance(m.clock.Add(24 * time.Hour))
	for _, n := range m.nodes {
		n.Ready, n.down, n.readyAt = true, false, time.Time{}
		noted := n.by == deadHolder && slices.Contains(clusterstate.Names(m.record().TakenOver), deadHolder) // the next operation sees to that
		if n.Role != plan.Worker || n.by == operation || n.by == deadHolder && !noted {
			n.Unschedulable, n.CordonedBy, n.by = false, "", ""
		}
	}
}

func (m *model) describe() string {
	var b strings.Builder
	fmt.Fprintf(&b, "lease %+v\n", m.record())
	for _, n := range m.planned() {
		fmt.Fprintf(&b, "  %s %s recorded %q ready %v cordoned %v by %q\n", n.Name, n.Version, n.Recorded, n.Ready, n.Unschedulable, m.nodes[n.Name].by)
	}
	return b.String()
}

// leaseClient is a clientset with one Lease, which behaves as on a real API
// server: a write has to name the version that was read. What clusterstate does
// not use is nil and panics.
type leaseClient struct {
	kubernetes.Interface
	coordinationclient.CoordinationV1Interface
	box *leaseBox
}

func (c *leaseClient) CoordinationV1() coordinationclient.CoordinationV1Interface { return c }

func (c *leaseClient) Leases(string) coordinationclient.LeaseInterface { return c.box }

type leaseBox struct {
	coordinationclient.LeaseInterface
	lease   *coordination.Lease
	version int
}

var leases = schema.GroupResource{Group: coordination.GroupName, Resource: "leases"}

func (b *leaseBox) Get(_ context.Context, name string, _ meta.GetOptions) (*coordination.Lease, error) {
	if b.lease == nil {
		return nil, apierrors.NewNotFound(leases, name)
	}
	return b.lease.DeepCopy(), nil
}

func (b *leaseBox) Create(_ context.Context, l *coordination.Lease, _ meta.CreateOptions) (*coordination.Lease, error) {
	if b.lease != nil {
		return nil, apierrors.NewAlreadyExists(leases, l.Name)
	}
	return b.write(l), nil
}

func (b *leaseBox) Update(_ context.Context, l *coordination.Lease, _ meta.UpdateOptions) (*coordination.Lease, error) {
	if b.lease == nil || l.ResourceVersion != b.lease.ResourceVersion {
		return nil, apierrors.NewConflict(leases, l.Name, fmt.Errorf("it has changed"))
	}
	return b.write(l), nil
}

func (b *leaseBox) write(l *coordination.Lease) *coordination.Lease {
	b.version++
	b.lease = l.DeepCopy()
	b.lease.ResourceVersion = fmt.Sprint(b.version)
	return b.lease.DeepCopy()
}
