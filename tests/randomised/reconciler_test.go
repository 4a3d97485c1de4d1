package randomised

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"ebb/internal/clusterstate"
	"ebb/internal/operation"
	"ebb/internal/version"
	"ebb/workflows"
)

// reconcilerRun is one execution of the reconciler on the model.
type reconcilerRun struct {
	*engine
	before, after clusterstate.Record // before: as it is found, without a dead holder
	healthy       bool                // the cluster was, before and after
	events        []event             // meanwhile
	err           error
}

// nodeOutage is for how long a node is not Ready while the reconciler looks.
const nodeOutage = 5 * time.Minute

// isReconciler reports whether an ID is that of a run of the reconciler.
func isReconciler(id string) bool { return strings.HasPrefix(id, "reconcile-") }

// runReconciler has the reconciler look at the cluster, as its schedule does, with
// the scenario's faults, and checks the invariants that hold afterwards.
func (m *model) runReconciler(id string) *reconcilerRun {
	m.operation, m.takenOver, m.running[id], m.diagnosedHealthy = id, "", true, false
	if rnd := m.random("lost", id); rnd.chance(40) { // perhaps between the reconciler's two looks
		n := m.nodes[draw(rnd, m.nodeList()...).Name]
		was, lost := n.Ready, m.clock.Add(rnd.between(time.Millisecond, 300*time.Millisecond))
		m.schedule(lost, func() { n.Ready = false })
		m.schedule(lost.Add(nodeOutage), func() { n.Ready = was })
		defer func() { m.advanceClock(m.clock.Add(2 * nodeOutage)) }()
	}
	r := &reconcilerRun{engine: newEngine(m, id), before: m.record()}
	if r.before.State == clusterstate.Recovering && !m.running[r.before.Holder] {
		r.before = afterHolderDied(r.before)
	}
	r.healthy = m.healthy(r.before.Target)
	began := len(m.events)
	env := r.environment()
	env.RegisterWorkflow(workflows.Reconcile)
	env.ExecuteWorkflow(workflows.Reconcile, operation.ReconcileInput{Cluster: "prod"})
	m.advanceClock(env.Now())
	m.running[id] = false
	r.after, r.err, r.events = m.record(), env.GetWorkflowError(), m.events[began:]
	r.healthy = r.healthy && m.healthy(r.before.Target)
	for _, inv := range invariantsOfReconciler {
		if problem := inv.check(r); problem != "" {
			m.violated(inv.name+" after "+id, problem, inv.why)
		}
	}
	return r
}

// invariantsOfReconciler hold when the reconciler has ended.
var invariantsOfReconciler = []struct {
	name, why string
	check     func(*reconcilerRun) string // "" = it holds
}{
	{"reconcilerOnlyLooks", "nobody has asked for a change of nodes", reconcilerOnlyLooks},
	{"reconcilerReleasesLock", "a cluster that nobody works on is free", reconcilerReleasesLock},
	{"onlyAlertIsReconciled", "a cluster in any other state is an operation's, or well", onlyAlertIsReconciled},
	{"alertEndsWhenHealthy", "Alert ends when nothing is wrong any more, and not before", alertEndsWhenHealthy},
	{"schedulePausedOnlyOutsideAlert", "nobody else would look after a cluster in Alert", schedulePausedOnlyOutsideAlert},
}

func reconcilerOnlyLooks(r *reconcilerRun) string {
	for _, e := range r.events {
		if slices.Contains(mutations, e.kind) {
			return fmt.Sprintf("%s was %s", e.node, e.kind)
		}
	}
	return ""
}

func reconcilerReleasesLock(r *reconcilerRun) string {
	if r.after.Holder == r.operation && !r.activityFailed("Release", "") {
		return "it still has the cluster"
	}
	return ""
}

func onlyAlertIsReconciled(r *reconcilerRun) string {
	before, after := r.before, r.after
	if before.State != clusterstate.Alert && after.Holder != r.operation &&
		(after.State != before.State || after.Holder != before.Holder || after.Target != before.Target) {
		return fmt.Sprintf("a cluster that is not in Alert was changed: %+v, %+v", before, after)
	}
	return ""
}

func alertEndsWhenHealthy(r *reconcilerRun) string {
	before, after := r.before, r.after
	if before.State != clusterstate.Alert || after.Holder == r.operation {
		return "" // onlyAlertIsReconciled and reconcilerReleasesLock have looked at that
	}
	reached := before.Target != "" && r.m.nodeList()[0].Version == before.Target
	switch {
	case after.State == clusterstate.Running && after.Target != "":
		return "it is Running and has a target"
	case after.State == clusterstate.Running && reached && after.Version != before.Target:
		return fmt.Sprintf("every node is at %s, and the record says %q", before.Target, after.Version)
	case after.State == clusterstate.Alert && after.Target != before.Target:
		return fmt.Sprintf("the target went from %q to %q", before.Target, after.Target)
	case r.err == nil && r.healthy && after.State != clusterstate.Running:
		return fmt.Sprintf("nothing is wrong with the cluster, and it is left in %s", after.State)
	case after.State != clusterstate.Running && after.State != clusterstate.Alert:
		return "it is left in " + string(after.State)
	}
	return ""
}

func schedulePausedOnlyOutsideAlert(r *reconcilerRun) string {
	if r.err == nil && r.after.State == clusterstate.Alert && r.m.schedulePaused {
		return "the schedule is paused while the cluster is in Alert"
	}
	return ""
}

// healthy reports whether the cluster may be Running, in the words of the
// specification: policy.Unrecovered is what is tested. target is that of an upgrade
// that failed.
func (m *model) healthy(target version.Version) bool {
	versions := map[version.Version]bool{}
	for _, n := range m.nodeList() {
		if !n.Ready || n.Unschedulable && n.CordonedBy != "" {
			return false
		}
		if n.Manual {
			continue
		}
		if n.Recorded != "" && n.Recorded != n.Version {
			return false
		}
		versions[n.Version] = true
	}
	return target == "" || len(versions) <= 1
}
