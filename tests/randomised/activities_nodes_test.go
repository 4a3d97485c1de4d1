package randomised

import (
	"context"
	"slices"
	"time"

	"go.temporal.io/sdk/temporal"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/operation"
)

func (m *model) node(in activities.NodeInput) (activities.NodeResult, error) {
	n := m.nodes[in.Node]
	if n == nil || n.deleted {
		return activities.NodeResult{}, permanentError(operation.TypeConfig, "node "+in.Node+" is not in cluster prod any more")
	}
	return activities.NodeResult{Node: n.Node}, nil
}

// preflight has the same answer for a node in the whole run.
func (m *model) preflight(in activities.PreflightInput) (result activities.PreflightResult, _ error) {
	if m.nodeFault(m.random("preflight", in.Node.Name), 0.1) {
		result.Faults = []string{"node " + in.Node.Name + ": kubeadm is not installed"}
	}
	return result, nil
}

func (m *model) machine(in activities.MachineInput) (activities.MachineResult, error) {
	return activities.MachineResult{Down: m.nodes[in.Node.Name].machineDown}, nil
}

func (m *model) machines(in activities.MachinesInput) (result activities.MachinesResult, _ error) {
	for _, n := range in.Nodes {
		if m.nodes[n.Name].machineDown {
			result.Down = append(result.Down, n.Name)
		}
	}
	return result, nil
}

func (m *model) attachISO(in activities.AttachISOInput) (activities.AttachISOResult, error) {
	m.nodes[in.Node.Name].iso = in.Version
	return activities.AttachISOResult{}, nil
}

// detachISO takes out what attachISO has put in; without a version there was nothing to.
func (m *model) detachISO(in activities.DetachISOInput) (activities.DetachISOResult, error) {
	if in.Version != "" {
		m.nodes[in.Node.Name].iso = ""
		return activities.DetachISOResult{Detached: true}, nil
	}
	return activities.DetachISOResult{Detached: m.random("iso", in.Node.Name).chance(50)}, nil
}

func (m *model) cordon(in activities.NodeInput) (activities.CordonResult, error) {
	n := m.nodes[in.Node]
	switch {
	case n.deleted:
		return activities.CordonResult{}, permanentError(operation.TypeConfig, "cordon node "+in.Node+": it is not in cluster prod any more")
	case n.Unschedulable:
		return activities.CordonResult{Ours: n.CordonedBy == in.Operation}, nil
	}
	n.Unschedulable, n.CordonedBy, n.cordonOwner = true, in.Operation, in.Operation
	m.emit(eventCordoned, in.Operation, in.Node, "")
	if rnd := m.random("operator", in.Operation, in.Node); rnd.chance(m.s.operatorUncordons) && !m.faultsOff {
		m.schedule(m.clock.Add(rnd.between(time.Second, 10*time.Minute)), func() { m.uncordonByOperator(n) })
	}
	return activities.CordonResult{Ours: true}, nil
}

// leaveCordoned notes that an upgrade leaves its cordon on a node.
func (m *model) leaveCordoned(in activities.LeaveCordonedInput) (activities.UnfinishedResult, error) {
	n := m.nodes[in.Node]
	if !n.deleted && n.Ready && n.Version == in.Version {
		return activities.UnfinishedResult{Lives: true}, nil
	}
	if n.deleted || !n.Unschedulable || n.CordonedBy != in.Operation {
		return activities.UnfinishedResult{}, nil
	}
	n.Unfinished = true
	m.emit(eventLeftCordoned, in.Operation, in.Node, "")
	return activities.UnfinishedResult{Ours: true}, nil
}

func (m *model) takeCordonOver(in activities.NodeInput) (activities.UnfinishedResult, error) {
	n := m.nodes[in.Node]
	if n.deleted || !n.Unschedulable || !n.Unfinished {
		return activities.UnfinishedResult{}, nil
	}
	n.CordonedBy, n.cordonOwner = in.Operation, in.Operation
	return activities.UnfinishedResult{Ours: true}, nil
}

// uncordonByOperator is kubectl uncordon: the annotation stays.
func (m *model) uncordonByOperator(n *modelNode) {
	if n.deleted || !n.Unschedulable {
		return
	}
	n.Unschedulable, n.cordonOwner = false, ""
	m.emit(eventOperatorUncordoned, "", n.Name, "")
}

func (m *model) uncordon(in activities.NodeInput) (activities.UncordonResult, error) {
	return activities.UncordonResult{Uncordoned: m.removeCordon(in.Node, in.Operation)}, nil
}

// removeCordon uncordons a node if its annotation names the operation.
func (m *model) removeCordon(node, operation string) bool {
	n := m.nodes[node]
	if n.deleted || !n.Unschedulable || n.CordonedBy != operation {
		return false
	}
	owner := n.cordonOwner
	n.Unschedulable, n.CordonedBy, n.cordonOwner, n.Unfinished = false, "", "", false
	m.emit(eventUncordoned, operation, node, owner)
	return true
}

func (m *model) uncordonAll(in activities.UncordonAllInput) (result activities.UncordonAllResult, err error) {
	for _, n := range m.nodeList() {
		if slices.Contains(clusterstate.Names(in.Operation), n.CordonedBy) && m.removeCordon(n.Name, n.CordonedBy) {
			result.Nodes = append(result.Nodes, n.Name)
		}
	}
	return result, m.store.Cleaned(context.Background(), in.Holder, in.Operation)
}

func (m *model) checkVersion(in activities.CheckVersionInput) (activities.CheckVersionResult, error) {
	if m.nodes[in.Node.Name].Version != in.Version {
		return activities.CheckVersionResult{}, permanentError(operation.TypeVersion, "node "+in.Node.Name+": the script ended well but the kubelet is not at "+string(in.Version))
	}
	return activities.CheckVersionResult{}, nil
}

// waitReady ends when the node is Ready at the version, or at its deadline.
func (m *model) waitReady(in activities.WaitReadyInput) (time.Duration, func() (activities.WaitReadyResult, error)) {
	n := m.nodes[in.Node.Name]
	wait := in.Deadline.Sub(m.clock)
	switch {
	case n.Version != in.Version:
	case n.Ready:
		wait = 0
	case n.readyAt.After(m.clock):
		wait = min(wait, n.readyAt.Sub(m.clock))
	}
	return max(wait, 0), func() (activities.WaitReadyResult, error) {
		if !n.Ready || n.Version != in.Version {
			return activities.WaitReadyResult{}, permanentError(operation.TypeNotReady, "node "+n.Name+" is not Ready at "+string(in.Version))
		}
		return activities.WaitReadyResult{}, nil
	}
}

func (m *model) recordVersion(in activities.RecordVersionInput) (activities.RecordVersionResult, error) {
	n := m.nodes[in.Node]
	if n.deleted {
		return activities.RecordVersionResult{}, temporal.NewApplicationError("not found", "StatusError")
	}
	if n.Recorded != in.Version {
		n.Recorded = in.Version
		m.emit(eventRecorded, in.Operation, in.Node, string(in.Version))
	}
	return activities.RecordVersionResult{}, nil
}

func (m *model) lookAgain(in activities.MachineInput) (activities.LookAgainResult, error) {
	n := m.nodes[in.Node.Name]
	return activities.LookAgainResult{Gone: n.deleted, Replaced: !n.deleted && n.UID != in.Node.UID}, nil
}

func (m *model) deleteNode(in activities.MachineInput) (activities.DeleteNodeResult, error) {
	if n := m.nodes[in.Node.Name]; !n.deleted && n.UID == in.Node.UID {
		n.deleted = true
		m.emit(eventDeleted, m.operation, n.Name, "")
	}
	return activities.DeleteNodeResult{}, nil
}

func (m *model) destroyMachine(in activities.MachineInput) (activities.DestroyMachineResult, error) {
	if !m.destroyed[in.Node.Name] {
		m.destroyed[in.Node.Name] = true
		m.emit(eventDestroyed, m.operation, in.Node.Name, "")
	}
	return activities.DestroyMachineResult{}, nil
}
