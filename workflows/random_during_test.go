package workflows

import (
	"fmt"
	"slices"
	"strings"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/plan"
)

// invariant holds whenever something happens; why is what it is good for.
type invariant struct {
	name, why string
	check     func(m *model, e event) string // "" = it holds
}

// during is filled by init because the invariants look at the model, which asks them.
var during []invariant

func init() {
	during = []invariant{
		{"lockHeld", "two operations must never have one cluster", lockHeld},
		{"ownCordonsOnly", "a cordon that is not Ebb's was made for a reason that Ebb does not know", ownCordonsOnly},
		{"oneControlPlane", "etcd and the API keep their majority only when one control plane is away at a time", oneControlPlane},
		{"etcdFirst", "an etcd that is not well loses its majority with the next control plane", etcdFirst},
		{"recoveredIsSound", "a cluster that is called Running is taken for sound", recoveredIsSound},
		{"controlPlanesFirst", "a kubelet must not be newer than its API server", controlPlanesFirst},
		{"maxUnavailable", "the load of more nodes than the user allowed has nowhere to go", maxUnavailable},
		{"maxParallel", "more drains at a time than the user allowed", maxParallel},
		{"allCordonedFirst", "a pod must not move onto a node that is drained next", allCordonedFirst},
		{"stagedFirst", "a node is not drained for packages that cannot be fetched", stagedFirst},
		{"strictIsStrict", "who would rather have no pod without room has said so", strictIsStrict},
		{"drainedFirst", "what runs on a node that is touched is lost", drainedFirst},
		{"nothingRemovedAfterRollback", "a scale-down that was taken back has changed nothing", nothingRemovedAfterRollback},
		{"deletedBeforeDestroyed", "a node whose machine is gone takes pods until it is found out", deletedBeforeDestroyed},
		{"upgradedOnce", "a node that is done is not taken out of service again", upgradedOnce},
		{"recordedWhenDone", "a retry skips what is recorded", recordedWhenDone},
	}
}

// changes are the events that an operation brings about on nodes.
var changes = []string{eCordoned, eUncordoned, eDrainBegan, eScript, eReset, eDeleted, eDestroyed, eRecorded}

func lockHeld(m *model, e event) string {
	if holder := m.record().Holder; slices.Contains(changes, e.what) && holder != m.operation {
		return fmt.Sprintf("%s %s while the cluster is held by %q", e.node, e.what, holder)
	}
	return ""
}

func ownCordonsOnly(m *model, e event) string {
	taken := slices.Contains(clusterstate.Names(m.takenOver), e.detail)
	if e.what == eUncordoned && e.detail != m.operation && !taken {
		return fmt.Sprintf("%s was uncordoned, which %q had cordoned", e.node, e.detail)
	}
	return ""
}

// away lists the nodes that the running upgrade keeps out of service, the node of
// an event that is about to take it out included.
func (m *model) away() (controlPlanes, workers []string) {
	for _, n := range m.planned() {
		began, ended := m.last(eScript, m.operation, n.Name), m.last(eScriptEnd, m.operation, n.Name)
		if m.nodes[n.Name].by != m.operation && began <= ended && (ended < 0 || n.Ready) {
			continue
		}
		if n.Role == plan.Worker {
			workers = append(workers, n.Name)
		} else {
			controlPlanes = append(controlPlanes, n.Name)
		}
	}
	return controlPlanes, workers
}

func (m *model) upgrading() bool { return m.s.kind == KindUpgrade }

func oneControlPlane(m *model, e event) string {
	if !m.upgrading() || e.what != eCordoned && e.what != eScript || m.nodes[e.node].Role == plan.Worker {
		return ""
	}
	for _, n := range m.planned() {
		if n.Role != plan.Worker && n.Name != e.node && (!n.Ready || n.Unschedulable) {
			return fmt.Sprintf("control plane %s: %s while %s is away (Ready %v, cordoned %v)", e.node, e.what, n.Name, n.Ready, n.Unschedulable)
		}
	}
	if controlPlanes, _ := m.away(); len(controlPlanes) > 1 {
		return fmt.Sprintf("control planes %v are away at once", controlPlanes)
	}
	return ""
}

// etcdFirst wants the last look at etcd to be a good one, and later than the end
// of what was done to the control plane before.
func etcdFirst(m *model, e event) string {
	if !m.upgrading() || e.what != eCordoned || m.nodes[e.node].Role == plan.Worker {
		return ""
	}
	well, sick := m.last(eEtcdWell, m.operation, ""), m.last(eEtcdSick, m.operation, "")
	for _, n := range m.planned() {
		if n.Role != plan.Worker && n.Name != e.node {
			sick = max(sick, m.last(eScriptEnd, m.operation, n.Name))
		}
	}
	if well < sick || well < 0 {
		return fmt.Sprintf("control plane %s is cordoned, and etcd was not seen to be well before", e.node)
	}
	return ""
}

func controlPlanesFirst(m *model, e event) string {
	if !m.upgrading() || e.what != eCordoned && e.what != eScript || m.nodes[e.node].Role != plan.Worker {
		return ""
	}
	for _, n := range m.planned() {
		if n.Role != plan.Worker && !plan.Finished(n, m.record().Target) {
			return fmt.Sprintf("worker %s: %s before control plane %s is done", e.node, e.what, n.Name)
		}
	}
	return ""
}

func maxUnavailable(m *model, _ event) string {
	if !m.upgrading() {
		return ""
	}
	if _, workers := m.away(); len(workers) > m.settings.Upgrade.MaxUnavailable {
		return fmt.Sprintf("%v are away, %d may be", workers, m.settings.Upgrade.MaxUnavailable)
	}
	return ""
}

func maxParallel(m *model, e event) string {
	if m.upgrading() || e.what != eDrainBegan {
		return ""
	}
	var draining []string
	for _, n := range m.planned() {
		began := m.last(eDrainBegan, m.operation, n.Name)
		if began > m.last(eDrained, m.operation, n.Name) && began > m.last(eDrainEnded, m.operation, n.Name) {
			draining = append(draining, n.Name)
		}
	}
	if len(draining) > max(m.settings.Scale.MaxParallel, 1) {
		return fmt.Sprintf("%v are drained at once, %d may be", draining, m.settings.Scale.MaxParallel)
	}
	return ""
}

func allCordonedFirst(m *model, e event) string {
	if !m.upgrading() && e.what == eCordoned && m.had(eDrainBegan, m.operation, "") {
		return e.node + " was cordoned after the first drain"
	}
	return ""
}

func stagedFirst(m *model, e event) string {
	switch {
	case !m.upgrading():
	case e.what == eStaged && m.hadThisHop(eCordoned, ""):
		return "staging " + e.node + " after a node was cordoned"
	case (e.what == eCordoned || e.what == eScript) && !m.hadThisHop(eStaged, e.node):
		return e.node + " was " + e.what + " before it was staged"
	}
	return ""
}

// hadThisHop is had for the running operation, since its last hop was complete.
func (m *model) hadThisHop(what, node string) bool {
	return m.last(what, m.operation, node) > m.last(eAdvanced, m.operation, "")
}

func strictIsStrict(m *model, e event) string {
	if m.s.kind == KindScaleDown && m.s.strict && m.s.crowded && !m.calm && slices.Contains(changes, e.what) && e.op == m.operation {
		return fmt.Sprintf("%s %s by a strict scale-down that leaves pods without room", e.node, e.what)
	}
	return ""
}

func drainedFirst(m *model, e event) string {
	if !slices.Contains([]string{eScript, eReset, eDeleted}, e.what) {
		return ""
	}
	for _, n := range m.planned() {
		mine := n.Name == e.node || m.nodes[n.Name].by == m.operation && !m.upgrading()
		if mine && !m.nodes[n.Name].down && !m.hadThisHop(eDrained, n.Name) {
			return fmt.Sprintf("%s: %s before %s was drained", e.node, e.what, n.Name)
		}
	}
	return ""
}

func nothingRemovedAfterRollback(m *model, e event) string {
	removal := slices.Contains([]string{eReset, eDeleted, eDestroyed}, e.what)
	if back := m.last(eUncordoned, m.operation, ""); removal && back >= 0 {
		return fmt.Sprintf("%s was %s after %s was uncordoned", e.node, e.what, m.log[back].node)
	}
	return ""
}

func deletedBeforeDestroyed(m *model, e event) string {
	if e.what == eDestroyed && !m.nodes[e.node].gone {
		return "the machine of " + e.node + " was destroyed while its node is in the cluster"
	}
	return ""
}

func upgradedOnce(m *model, e event) string {
	if e.what != eScript {
		return ""
	}
	if plan.Finished(m.nodes[e.node].Node, e.detail) {
		return e.node + " was done already"
	}
	running := 0
	for _, run := range m.runs {
		if run.node == e.node && run.phase == activities.PhaseUpgrade && run.end.After(m.clock) {
			running++
		}
	}
	if running > 1 {
		return "two scripts run on " + e.node
	}
	return ""
}

func recordedWhenDone(m *model, e event) string {
	n := m.nodes[e.node]
	if e.what == eRecorded && (!n.Ready || !strings.HasSuffix(n.Version, e.detail) || n.by == m.operation) {
		return fmt.Sprintf("%s was recorded at %s: Ready %v, version %s, cordoned by %q", e.node, e.detail, n.Ready, n.Version, n.by)
	}
	return ""
}
