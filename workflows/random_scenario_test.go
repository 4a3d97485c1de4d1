package workflows

import (
	"fmt"
	"math"
	"strings"
	"time"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/plan"
)

// dice is a small random generator (splitmix64). What is drawn for a call depends
// on the seed and the name of the call only, never on the order of calls, so that
// a seed tells the same story when something unrelated is added to a workflow.
type dice struct{ state uint64 }

func newDice(seed uint64, of ...any) *dice {
	name := uint64(14695981039346656037) // FNV-1a
	for _, b := range []byte(fmt.Sprint(of...)) {
		name = (name ^ uint64(b)) * 1099511628211
	}
	return &dice{state: seed*0x9e3779b97f4a7c15 ^ name}
}

func (d *dice) next() uint64 {
	d.state += 0x9e3779b97f4a7c15
	z := d.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func (d *dice) n(below int) int { return int(d.next() % uint64(below)) }

// chance is true so many times in a hundred.
func (d *dice) chance(percent float64) bool {
	return float64(d.next()>>11)/(1<<53)*100 < percent
}

// span is a duration in the interval; the odd nanoseconds keep two things from
// happening at the same instant.
func (d *dice) span(from, to time.Duration) time.Duration {
	return from + time.Duration(d.next()%uint64(to-from))
}

func draw[T any](d *dice, from ...T) T { return from[d.n(len(from))] }

const (
	oldVersion   = "v1.36.3"
	otherTarget  = "1.37.1"
	farTarget    = "1.38.1"
	deadHolder   = "dead-0"
	livingHolder = "live-0"
	drainBefore  = "drain-0" // an earlier drain, whose nodes stay cordoned
	kubectl      = "kubectl" // a person; leaves no annotation
)

// scenario is everything that is drawn before a run begins.
type scenario struct {
	seed  uint64
	kind  Kind
	nodes []plan.Node
	down  map[string]bool     // nodes whose machine is down
	by    map[string]string   // who cordoned a node before
	lease clusterstate.Record // what is written in the cluster

	names  []string // of the nodes to drain or remove
	count  int
	hops   []string
	target string

	strict, crowded bool // of a scale-down: no pod may be left without room; some would be

	settings activities.Survey // without the nodes
	drain    activities.DrainSettings

	cancelAt  time.Duration // 0 = never
	joinsAt   time.Duration // a node of the old version joins; 0 = never
	uncordons float64       // percent of cordons that an operator takes back soon
	steering  []steered     // updates that an operator sends

	// Percentages of the attempts at an activity (faults) and of the things that
	// happen on nodes (trouble) that go wrong.
	again, lost, hang, slow, permanent, outage, trouble float64
}

func drawScenario(seed uint64) *scenario {
	d := newDice(seed, "scenario")
	s := &scenario{seed: seed, kind: draw(d, KindUpgrade, KindUpgrade, KindUpgrade, KindScaleDown, KindScaleDown, KindDrain),
		down: map[string]bool{}, by: map[string]string{}}
	s.drawSettings(d)
	s.drawFaults(d)
	s.drawLease(d)
	s.drawNodes(d)
	s.drawRequest(d)
	// What is drawn from dice of its own leaves all other draws of a seed as they are.
	s.drawHops(newDice(seed, "hops"))
	s.drawSteering(newDice(seed, "steering"))
	d = newDice(seed, "capacity")
	s.strict, s.crowded = d.chance(30), d.chance(20)
	return s
}

// drawHops makes some upgrades go over a minor version.
func (s *scenario) drawHops(d *dice) {
	if s.kind == KindUpgrade && s.target == target && d.chance(12) {
		s.hops, s.target = []string{target}, farTarget
	}
}

// steered is an update that an operator sends at a time.
type steered struct {
	at     time.Duration
	update string
	node   string
}

// drawSteering draws an operator who steers. What is paused is resumed.
func (s *scenario) drawSteering(d *dice) {
	at := func() time.Duration {
		return d.span(time.Millisecond, draw(d, 5*time.Second, time.Minute, 10*time.Minute, time.Hour))
	}
	if d.chance(15) {
		pause := at()
		s.steering = append(s.steering, steered{pause, UpdatePause, ""}, steered{pause + at(), UpdateResume, ""})
	}
	for range 3 {
		node := s.nodes[d.n(len(s.nodes))].Name
		if d.chance(8) {
			s.steering = append(s.steering, steered{at(), UpdateSkipNode, node})
		}
		if d.chance(8) {
			s.steering = append(s.steering, steered{at(), UpdateRetryNow, draw(d, node, "")})
		}
	}
}

func (s *scenario) drawSettings(d *dice) {
	s.settings = activities.Survey{
		Scale: activities.ScaleSettings{
			Timeout: draw(d, time.Hour, time.Hour, 20*time.Minute, 5*time.Minute, 90*time.Second), Attempts: 1 + d.n(3),
			MaxParallel: 1 + d.n(3), MinWorkers: 1,
		},
		Upgrade: activities.UpgradeSettings{
			Retries: d.n(4), NodeTimeout: draw(d, 30*time.Minute, 30*time.Minute, 10*time.Minute, 3*time.Minute),
			Timeout:      draw(d, 0, 0, 0, 2*time.Hour, 30*time.Minute, 5*time.Minute),
			ReadyTimeout: draw(d, 10*time.Minute, 2*time.Minute), SteadyInterval: time.Second, MaxUnavailable: 1 + d.n(3),
		},
	}
	s.drain = activities.DrainSettings{Timeout: draw(d, 5*time.Minute, time.Minute), RetryInterval: draw(d, 30*time.Second, 5*time.Second)}
}

func (s *scenario) drawFaults(d *dice) {
	rate := func(rates ...float64) float64 { return draw(d, rates...) }
	s.again, s.lost, s.hang, s.slow = rate(0, 3, 15, 40), rate(0, 2, 10), rate(0, 0, 2, 8), rate(0, 5, 20)
	s.permanent, s.outage, s.trouble = rate(0, 0, 1, 3, 8), rate(0, 0, 0.5), rate(0, 1, 3, 10, 25)
	if d.chance(30) {
		s.cancelAt = d.span(time.Millisecond, draw(d, 2*time.Second, 30*time.Second, 5*time.Minute, time.Hour))
	}
	s.uncordons = rate(0, 0, 0, 15)
	if d.chance(4) && s.kind == KindUpgrade {
		s.joinsAt = d.span(time.Second, 20*time.Minute)
	}
}

// drawLease draws what other operations have left in the cluster.
func (s *scenario) drawLease(d *dice) {
	r := clusterstate.Record{State: clusterstate.Running, Version: draw(d, "", "1.36.3")}
	if d.chance(35) {
		r.State, r.Target = clusterstate.Alert, draw(d, target, target, target, target, "", otherTarget)
	}
	if holder := draw(d, "", "", "", "", "", "", "", "", deadHolder, deadHolder, livingHolder); holder != "" {
		r.Holder, r.Engine, r.From = holder, "engine/default", r.State
		r.State = draw(d, clusterstate.Draining, clusterstate.Scaling, clusterstate.Upgrading)
		if r.State == clusterstate.Upgrading {
			r.Target = target
		}
	}
	s.lease = r
}

func (s *scenario) drawNodes(d *dice) {
	workers, partly := d.n(9), s.lease.Target == target || d.chance(15)
	for i := range draw(d, 1, 1, 2, 3, 3) + workers {
		s.nodes = append(s.nodes, s.drawNode(d, i, workers, partly))
	}
	s.nodes = plan.Sort(s.nodes)
}

func (s *scenario) drawNode(d *dice, i, workers int, partly bool) plan.Node {
	n := plan.Node{Name: fmt.Sprintf("w%d", i+1), Role: plan.Worker, Version: oldVersion, Ready: true}
	rare := 1.0
	if i >= workers {
		n.Name, n.Role, rare = fmt.Sprintf("cp%d", i-workers+1), plan.ControlPlane, 0.2
	}
	n.UID, n.MachineID, n.Created = "u-"+n.Name, "m-"+n.Name, epoch.Add(time.Duration(i)*time.Hour)
	n.Manual = n.Role == plan.Worker && d.chance(8)
	n.Ready = !d.chance(10 * rare)
	if partly && !n.Manual && d.chance(40) {
		n.Version, n.Recorded = "v"+target, draw(d, target, target, "")
	}
	if d.chance(15 * rare) {
		s.by[n.Name] = draw(d, kubectl, drainBefore)
	}
	if s.lease.Holder == deadHolder && d.chance(30) {
		s.by[n.Name] = deadHolder
	}
	n.Unschedulable = s.by[n.Name] != ""
	if n.Unschedulable && s.by[n.Name] != kubectl {
		n.CordonedBy = s.by[n.Name]
	}
	s.down[n.Name] = d.chance(5 * rare)
	n.Ready = n.Ready && !s.down[n.Name]
	return n
}

// drawRequest draws what the operation is asked for; sometimes nonsense.
func (s *scenario) drawRequest(d *dice) {
	s.target = target
	if d.chance(3) {
		s.target = draw(d, otherTarget, "1.38.0", "1.36.3", "latest")
	}
	for _, n := range s.nodes {
		if d.chance(30) && (n.Role == plan.Worker || d.chance(30)) {
			s.names = append(s.names, n.Name)
		}
	}
	if s.kind == KindScaleDown && (d.chance(40) || len(s.names) == 0) {
		s.names, s.count = nil, 1+d.n(3)
	}
	if len(s.names) > 0 && d.chance(3) {
		s.names = append(s.names, draw(d, s.names[0], "nobody"))
	}
}

func (s *scenario) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s of names %v, count %d, strict %v, crowded %v, hops %v, target %s; lease %+v\n", s.kind, s.names, s.count, s.strict, s.crowded, s.hops, s.target, s.lease)
	for _, n := range s.nodes {
		fmt.Fprintf(&b, "  %s %s %s recorded %q ready %v manual %v cordoned by %q machine down %v\n",
			n.Name, n.Role, n.Version, n.Recorded, n.Ready, n.Manual, s.by[n.Name], s.down[n.Name])
	}
	fmt.Fprintf(&b, "  scale %+v\n  upgrade %+v\n  drain %v every %v\n", s.settings.Scale, s.settings.Upgrade, s.drain.Timeout, s.drain.RetryInterval)
	fmt.Fprintf(&b, "  cancelled at %v, a node joins at %v, operator uncordons %v%%, steers %v\n", s.cancelAt, s.joinsAt, s.uncordons, s.steering)
	fmt.Fprintf(&b, "  faults (%%): again %v, lost %v, hang %v, slow %v, permanent %v, outage %v; trouble on nodes %v",
		s.again, s.lost, s.hang, s.slow, s.permanent, s.outage, s.trouble)
	return b.String()
}

// epoch is when every run begins.
var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// never is past the end of every run.
const never = time.Duration(math.MaxInt64)
