package randomised

import (
	"fmt"
	"slices"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/operation"
	"ebb/internal/policy"
	"ebb/internal/version"
)

// invariantsDuring hold at every event. It is filled by init because the invariants
// look at the model, which checks them.
var invariantsDuring []struct {
	name, why string
	check     func(m *model, e event) string // "" = it holds
}

func init() {
	invariantsDuring = []struct {
		name, why string
		check     func(m *model, e event) string
	}{
		{"lockHeld", "two operations must never have one cluster", lockHeld},
		{"ownCordonsOnly", "a cordon that is not Ebb's was made for a reason that Ebb does not know", ownCordonsOnly},
		{"oneControlPlane", "etcd and the API keep their majority only when one control plane is out of service at a time", oneControlPlane},
		{"etcdFirst", "an etcd that is not healthy loses its majority with the next control plane", etcdFirst},
		{"runningMeansHealthy", "a cluster that is called Running is taken for healthy", runningMeansHealthy},
		{"controlPlanesFirst", "a kubelet must not be newer than its API server", controlPlanesFirst},
		{"maxUnavailable", "the load of more nodes than the user allowed has nowhere to go", maxUnavailable},
		{"maxParallel", "more drains at a time than the user allowed", maxParallel},
		{"allCordonedFirst", "a pod must not move onto a node that is drained next", allCordonedFirst},
		{"stagedFirst", "a node is not drained for packages that cannot be fetched", stagedFirst},
		{"strictNeedsCapacity", "who would rather have no pod without room has said so", strictNeedsCapacity},
		{"drainedFirst", "what runs on a node that is touched is lost", drainedFirst},
		{"nothingRemovedAfterRollback", "a scale-down that was rolled back has changed nothing", nothingRemovedAfterRollback},
		{"deletedBeforeDestroyed", "a node whose machine is gone takes pods until somebody notices", deletedBeforeDestroyed},
		{"leftEtcdFirst", "a member whose machine is gone counts for the quorum of etcd for ever", leftEtcdFirst},
		{"upgradedOnce", "a node that is done is not taken out of service again", upgradedOnce},
		{"recordedWhenDone", "a retry skips what is recorded", recordedWhenDone},
	}
}

func lockHeld(m *model, e event) string {
	if holder := m.record().Holder; slices.Contains(mutations, e.kind) && holder != m.operation {
		return fmt.Sprintf("%s %s while the cluster is held by %q", e.node, e.kind, holder)
	}
	return ""
}

func ownCordonsOnly(m *model, e event) string {
	takenOver := slices.Contains(clusterstate.Names(m.takenOver), e.detail)
	if e.kind == eventUncordoned && e.detail != m.operation && !takenOver {
		return fmt.Sprintf("%s was uncordoned, which %q had cordoned", e.node, e.detail)
	}
	return ""
}

func (m *model) upgrading() bool { return m.s.kind == operation.KindUpgrade }

// outOfService returns the nodes that the running upgrade keeps out of service: it
// has cordoned them, or has run a script on them and they are not Ready yet.
func (m *model) outOfService() (controlPlanes, workers []string) {
	for _, n := range m.nodeList() {
		started, ended := m.lastEvent(eventScriptStarted, m.operation, n.Name), m.lastEvent(eventScriptEnded, m.operation, n.Name)
		if m.nodes[n.Name].cordonOwner != m.operation && started <= ended && (ended < 0 || n.Ready) {
			continue
		}
		if n.Role == policy.Worker {
			workers = append(workers, n.Name)
		} else {
			controlPlanes = append(controlPlanes, n.Name)
		}
	}
	return controlPlanes, workers
}

func oneControlPlane(m *model, e event) string {
	if !m.upgrading() || e.kind != eventCordoned && e.kind != eventScriptStarted || m.nodes[e.node].Role == policy.Worker {
		return ""
	}
	for _, n := range m.nodeList() {
		if n.Role != policy.Worker && n.Name != e.node && (!n.Ready || n.Unschedulable) {
			return fmt.Sprintf("control plane %s: %s while %s is out of service (Ready %v, cordoned %v)", e.node, e.kind, n.Name, n.Ready, n.Unschedulable)
		}
	}
	if controlPlanes, _ := m.outOfService(); len(controlPlanes) > 1 {
		return fmt.Sprintf("control planes %v are out of service at once", controlPlanes)
	}
	return ""
}

// etcdFirst: the last look at etcd before a control plane is cordoned has found it
// healthy, and was later than the script on the control plane before.
func etcdFirst(m *model, e event) string {
	if !m.upgrading() || e.kind != eventCordoned || m.nodes[e.node].Role == policy.Worker {
		return ""
	}
	healthy, faulty := m.lastEvent(eventEtcdHealthy, m.operation, ""), m.lastEvent(eventEtcdFaulty, m.operation, "")
	for _, n := range m.nodeList() {
		if n.Role != policy.Worker && n.Name != e.node {
			faulty = max(faulty, m.lastEvent(eventScriptEnded, m.operation, n.Name))
		}
	}
	if healthy < faulty || healthy < 0 {
		return fmt.Sprintf("control plane %s is cordoned, and etcd was not found healthy before", e.node)
	}
	return ""
}

func leftEtcdFirst(m *model, e event) string {
	if e.kind == eventDestroyed && m.nodes[e.node].inEtcd {
		return fmt.Sprintf("the machine of control plane %s was destroyed, which is a member of etcd still", e.node)
	}
	return ""
}

// runningMeansHealthy: the reconciler has looked when it had the cluster, so that
// no operation was at work.
func runningMeansHealthy(m *model, e event) string {
	if e.kind == eventReleased && isReconciler(e.operation) && e.detail == string(clusterstate.Running) && !m.diagnosedHealthy {
		return "the reconciler has called a cluster Running that was not healthy when it last looked"
	}
	return ""
}

func controlPlanesFirst(m *model, e event) string {
	if !m.upgrading() || e.kind != eventCordoned && e.kind != eventScriptStarted || m.nodes[e.node].Role != policy.Worker {
		return ""
	}
	for _, n := range m.nodeList() {
		if n.Role != policy.Worker && !policy.Finished(n, m.record().Target) {
			return fmt.Sprintf("worker %s: %s before control plane %s is done", e.node, e.kind, n.Name)
		}
	}
	return ""
}

func maxUnavailable(m *model, _ event) string {
	if !m.upgrading() {
		return ""
	}
	if _, workers := m.outOfService(); len(workers) > m.settings.Upgrade.MaxUnavailable {
		return fmt.Sprintf("%v are out of service, %d may be", workers, m.settings.Upgrade.MaxUnavailable)
	}
	return ""
}

func maxParallel(m *model, e event) string {
	if m.upgrading() || e.kind != eventDrainStarted {
		return ""
	}
	var draining []string
	for _, n := range m.nodeList() {
		started := m.lastEvent(eventDrainStarted, m.operation, n.Name)
		if started > m.lastEvent(eventDrained, m.operation, n.Name) && started > m.lastEvent(eventDrainFailed, m.operation, n.Name) {
			draining = append(draining, n.Name)
		}
	}
	if len(draining) > max(m.settings.Scale.MaxParallel, 1) {
		return fmt.Sprintf("%v are drained at once, %d may be", draining, m.settings.Scale.MaxParallel)
	}
	return ""
}

func allCordonedFirst(m *model, e event) string {
	if !m.upgrading() && e.kind == eventCordoned && m.hasEvent(eventDrainStarted, m.operation, "") {
		return e.node + " was cordoned after the first drain"
	}
	return ""
}

func stagedFirst(m *model, e event) string {
	switch {
	case !m.upgrading():
	case e.kind == eventStaged && m.hasEventInHop(eventCordoned, ""):
		return e.node + " was staged after a node was cordoned"
	case (e.kind == eventCordoned || e.kind == eventScriptStarted) && !m.hasEventInHop(eventStaged, e.node):
		return fmt.Sprintf("%s: %s before it was staged", e.node, e.kind)
	}
	return ""
}

func strictNeedsCapacity(m *model, e event) string {
	refuses := m.s.kind == operation.KindScaleDown && m.s.strict && m.s.noCapacity && !m.faultsOff
	if refuses && slices.Contains(mutations, e.kind) && e.operation == m.operation {
		return fmt.Sprintf("%s %s by a strict scale-down that leaves pods without room", e.node, e.kind)
	}
	return ""
}

func drainedFirst(m *model, e event) string {
	if !slices.Contains([]eventKind{eventScriptStarted, eventReset, eventDeleted}, e.kind) {
		return ""
	}
	for _, n := range m.nodeList() {
		concerned := n.Name == e.node || m.nodes[n.Name].cordonOwner == m.operation && !m.upgrading()
		if concerned && !m.nodes[n.Name].machineDown && !m.hasEventInHop(eventDrained, n.Name) {
			return fmt.Sprintf("%s: %s before %s was drained", e.node, e.kind, n.Name)
		}
	}
	return ""
}

func nothingRemovedAfterRollback(m *model, e event) string {
	removal := slices.Contains([]eventKind{eventReset, eventDeleted, eventDestroyed}, e.kind)
	if back := m.lastEvent(eventUncordoned, m.operation, ""); removal && back >= 0 {
		return fmt.Sprintf("%s was %s after %s was uncordoned", e.node, e.kind, m.events[back].node)
	}
	return ""
}

func deletedBeforeDestroyed(m *model, e event) string {
	if e.kind == eventDestroyed && !m.nodes[e.node].deleted {
		return "the machine of " + e.node + " was destroyed while its node is in the cluster"
	}
	return ""
}

func upgradedOnce(m *model, e event) string {
	if e.kind != eventScriptStarted {
		return ""
	}
	last := m.lastEvent(eventScriptEnded, m.operation, e.node)
	askedAgain := last >= 0 && m.events[last].detail == fmt.Sprint(exitTryAgain)
	if policy.Finished(m.nodes[e.node].Node, version.Version(e.detail)) && !askedAgain {
		return e.node + " was done already"
	}
	running := 0
	for _, run := range m.scripts {
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
	if e.kind == eventRecorded && (!n.Ready || string(n.Version) != e.detail || n.cordonOwner == m.operation) {
		return fmt.Sprintf("%s was recorded at %s: Ready %v, version %s, cordoned by %q", e.node, e.detail, n.Ready, n.Version, n.cordonOwner)
	}
	return ""
}
