package randomised

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/lease"
	"ebb/internal/policy"
	"ebb/internal/version"
)

// model is a cluster in memory, in simulated time. The activity models read and
// write it, whatever happens to it is an event, and the invariants look at both.
type model struct {
	s         *scenario
	clock     time.Time
	timers    []timer
	faultsOff bool // for the second run: nothing goes wrong any more, and nobody interferes

	// The operation, or the run of the reconciler, that is at work.
	operation   string
	takenOver   string          // dead operations whose place it took
	upgradingTo version.Version // of an upgrade: the hop, or the target, that is recorded
	settings    activities.Survey

	// The cluster.
	nodes     map[string]*modelNode
	store     *lease.Store
	running   map[string]bool // operations whose workflow runs
	scripts   map[string]*scriptRun
	drainEnds map[string]time.Time // of the attempts that have started
	destroyed map[string]bool      // nodes whose machine is destroyed

	etcdChecks       int
	diagnosedHealthy bool // the reconciler's last look was while it had the cluster, and found nothing wrong
	schedulePaused   bool // of the reconciler

	events     []event
	violations []string
}

// modelNode is a node, and what its policy.Node does not say.
type modelNode struct {
	policy.Node
	cordonOwner string    // who has cordoned it, whatever the annotation says
	readyAt     time.Time // when it will be Ready; zero = not foreseen
	machineDown bool
	deleted     bool
	iso         version.Version // whose binaries are in the drive of its machine
	inEtcd      bool            // a control plane has a member
}

// timer is something that happens at a time.
type timer struct {
	at   time.Time
	fire func()
}

func newModel(s *scenario) *model {
	m := &model{
		s: s, clock: epoch, settings: s.settings, nodes: map[string]*modelNode{}, running: map[string]bool{runningHolder: true},
		scripts: map[string]*scriptRun{}, drainEnds: map[string]time.Time{}, destroyed: map[string]bool{},
	}
	for _, n := range s.nodes {
		m.nodes[n.Name] = &modelNode{Node: n, cordonOwner: s.cordonOwner[n.Name], machineDown: s.machineDown[n.Name], inEtcd: n.Role != policy.Worker}
	}
	m.store = lease.NewStore(&fakeClientset{leases: &fakeLeases{}}, func() time.Time { return m.clock })
	m.initLease(s.record)
	if s.nodeJoinsAt > 0 {
		m.schedule(epoch.Add(s.nodeJoinsAt), func() {
			n := policy.Node{Name: "late", UID: "u-late", Role: policy.Worker, Version: startVersion, Ready: true, MachineID: "m-late", Created: m.clock}
			m.nodes[n.Name] = &modelNode{Node: n}
			m.emit(eventJoined, "", n.Name, "")
		})
	}
	return m
}

// schedule lets something happen when the clock gets there.
func (m *model) schedule(at time.Time, fire func()) {
	m.timers = append(m.timers, timer{at, fire})
}

// advanceClock moves the clock, and fires the timers that are due, in order.
func (m *model) advanceClock(now time.Time) {
	for {
		next := -1
		for i, t := range m.timers {
			if !t.at.After(now) && (next < 0 || t.at.Before(m.timers[next].at)) {
				next = i
			}
		}
		if next < 0 {
			break
		}
		t := m.timers[next]
		m.timers = slices.Delete(m.timers, next, next+1)
		m.clock = t.at
		t.fire()
	}
	m.clock = now
}

// nodeList returns the nodes of the cluster as a survey has them.
func (m *model) nodeList() []policy.Node {
	var nodes []policy.Node
	for _, n := range m.nodes {
		if !n.deleted {
			nodes = append(nodes, n.Node)
		}
	}
	return policy.Sort(nodes)
}

// machinesDown returns the nodes whose machine is down.
func (m *model) machinesDown() (down []string) {
	for _, n := range m.nodeList() {
		if m.nodes[n.Name].machineDown {
			down = append(down, n.Name)
		}
	}
	return down
}

// random returns the generator for one purpose, which of names.
func (m *model) random(of ...any) *random { return newRandom(m.s.seed, of...) }

// nodeFault draws whether something goes wrong on a node, factor times as often as
// the scenario's rate.
func (m *model) nodeFault(rnd *random, factor float64) bool {
	return rnd.chance(m.s.nodeFaultRate*factor) && !m.faultsOff
}

// repairCluster is an operator's work after a failure: machines run, nodes are
// Ready, control planes are schedulable, and the cordons are taken back that the
// operation, or a dead one, has left. Those of a dead one that the Lease still
// names are for the next operation.
func (m *model) repairCluster(operation string) {
	m.advanceClock(m.clock.Add(24 * time.Hour))
	for _, n := range m.nodes {
		n.Ready, n.machineDown, n.readyAt = true, false, time.Time{}
		named := n.cordonOwner == deadHolder && slices.Contains(clusterstate.Names(m.record().TakenOver), deadHolder)
		if n.Role != policy.Worker || n.cordonOwner == operation || n.cordonOwner == deadHolder && !named {
			n.Unschedulable, n.CordonedBy, n.cordonOwner = false, "", ""
		}
	}
}

// afterHolderDied returns how a cluster is found whose holder's workflow is over.
func afterHolderDied(r clusterstate.Record) clusterstate.Record {
	switch {
	case r.Holder == "":
	case r.State == clusterstate.Draining:
		r.State = r.From
	default:
		r.State = clusterstate.Alert
	}
	return r
}

func (m *model) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "lease %+v\n", m.record())
	for _, n := range m.nodeList() {
		fmt.Fprintf(&b, "  %s %s recorded %q ready %v cordoned %v by %q\n", n.Name, n.Version, n.Recorded, n.Ready, n.Unschedulable, m.nodes[n.Name].cordonOwner)
	}
	return b.String()
}
