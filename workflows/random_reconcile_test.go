package workflows

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/plan"
)

// recovery is one run of the reconciler.
type recovery struct {
	*engine
	before, after clusterstate.Record
	sound         bool // the cluster was, before and after
	err           error
}

// nodeAway is how long a node is lost.
const nodeAway = 5 * time.Minute

// reconcile has the reconciler look at the cluster, as its schedule does, with
// the scenario's faults, and asks what must hold afterwards.
func (m *model) reconcile(id string) *recovery {
	m.operation, m.takenOver, m.alive[id], m.sawSound = id, "", true, false
	if d := m.dice("lost", id); d.chance(40) { // for some minutes, perhaps between the reconciler's two looks
		n := m.nodes[draw(d, m.planned()...).Name]
		was, gone := n.Ready, m.clock.Add(d.span(time.Millisecond, 300*time.Millisecond))
		m.later(gone, func() { n.Ready = false })
		m.later(gone.Add(nodeAway), func() { n.Ready = was })
		defer func() { m.advance(m.clock.Add(2 * nodeAway)) }()
	}
	r := &recovery{engine: newEngine(m, id), before: m.record()}
	if r.before.State == clusterstate.Recovering && !m.alive[r.before.Holder] { // of one that died: it is in Alert
		r.before = withoutHolder(r.before)
	}
	r.sound = m.sound(r.before.Target)
	began := len(m.log)
	env := r.environment()
	env.RegisterWorkflow(Reconcile)
	env.ExecuteWorkflow(Reconcile, ReconcileInput{Cluster: "prod"})
	m.advance(env.Now())
	m.alive[id] = false
	r.after, r.err = m.record(), env.GetWorkflowError()
	r.sound = r.sound && m.sound(r.before.Target)
	for _, e := range m.log[began:] {
		if slices.Contains(changes, e.what) {
			r.violated("touchesNothing", fmt.Sprintf("%s: %s", e.node, e.what), "the reconciler only looks")
		}
	}
	if problem := r.leavesAsItShould(); problem != "" {
		r.violated("leavesAsItShould", problem, "Alert ends when nothing is wrong any more, and not before")
	}
	if r.err == nil && r.after.State == clusterstate.Alert && m.resting {
		r.violated("staysAwake", "the reconciler rests while the cluster is in Alert", "nobody else would look after it")
	}
	return r
}

func (r *recovery) violated(name, problem, why string) {
	r.m.violations = append(r.m.violations, fmt.Sprintf("%s after %s: %s (%s)", name, r.operation, problem, why))
}

func (r *recovery) leavesAsItShould() string {
	released := !slices.ContainsFunc(r.failed, func(f callFailure) bool { return f.name == "Release" })
	switch before, after := r.before, r.after; {
	case after.Holder == r.operation && released:
		return "it still has the cluster"
	case after.Holder == r.operation:
		return ""
	case before.State != clusterstate.Alert:
		if after.State != before.State || after.Holder != before.Holder || after.Target != before.Target {
			return fmt.Sprintf("a cluster that is not in Alert was changed: %+v, %+v", before, after)
		}
	case after.State == clusterstate.Running && after.Target != "":
		return "it is Running and has a target"
	case after.State == clusterstate.Running && before.Target != "" && plan.SameVersion(r.m.planned()[0].Version, before.Target) && !plan.SameVersion(after.Version, before.Target):
		return fmt.Sprintf("every node is at %s, and the record says %q", before.Target, after.Version)
	case after.State == clusterstate.Alert && after.Target != before.Target:
		return fmt.Sprintf("the target went from %q to %q", before.Target, after.Target)
	case r.err == nil && r.sound && after.State != clusterstate.Running:
		return fmt.Sprintf("nothing is wrong with the cluster, and it is left in %s", after.State)
	case after.State != clusterstate.Running && after.State != clusterstate.Alert:
		return "it is left in " + string(after.State)
	}
	return ""
}

// sound is whether a cluster may be Running, in the words of the specification and
// of the decision to be stricter after an upgrade that failed.
func (m *model) sound(upgradeTo string) bool {
	versions := map[string]bool{}
	for _, n := range m.planned() {
		if !n.Ready || n.Unschedulable && n.CordonedBy != "" {
			return false
		}
		if n.Manual {
			continue
		}
		version := strings.TrimPrefix(n.Version, "v")
		if n.Recorded != "" && strings.TrimPrefix(n.Recorded, "v") != version {
			return false
		}
		versions[version] = true
	}
	return upgradeTo == "" || len(versions) <= 1
}

// recoveredIsSound wants the reconciler to have seen that the cluster is sound
// when it already had it, so that no operation was at work.
func recoveredIsSound(m *model, e event) string {
	if e.what == eReleased && strings.HasPrefix(e.op, "reconcile") && e.detail == string(clusterstate.Running) && !m.sawSound {
		return "the reconciler has called a cluster Running that was not sound when it last looked"
	}
	return ""
}

func (m *model) diagnose(activities.DiagnoseInput) (activities.Diagnosis, error) {
	r, nodes := m.record(), m.planned()
	m.sawSound = r.Holder == m.operation && m.sound(r.Target)
	d := activities.Diagnosis{State: r.State, Faults: plan.Unrecovered(r, nodes)}
	if r.Target != "" && plan.SameVersion(nodes[0].Version, r.Target) {
		d.Version = r.Target
	}
	return d, nil
}

func (m *model) rest(activities.RestInput) (activities.RestResult, error) {
	state := m.record().State
	m.resting = state != clusterstate.Alert && state != clusterstate.Recovering
	return activities.RestResult{Resting: m.resting}, nil
}
