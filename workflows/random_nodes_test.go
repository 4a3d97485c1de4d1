package workflows

import (
	"fmt"
	"time"

	"go.temporal.io/sdk/temporal"

	"ebb/activities"
	"ebb/internal/drain"
	"ebb/internal/plan"
)

// drain empties a node after a while, unless a pod is blocked until the attempt's
// end. An attempt that another worker goes on with ends when it would have ended.
func (m *model) drain(in activities.DrainInput) (time.Duration, func() (drain.Result, error)) {
	n := m.nodes[in.Node]
	key := fmt.Sprint(in.Operation, in.Node, in.Deadline)
	d := m.dice("drain", in.Operation, in.Node, m.count(eDrainBegan, in.Operation, in.Node))
	end, begun := m.drains[key]
	if !begun {
		end = m.clock.Add(d.span(time.Second, draw(d, 5*time.Second, time.Minute, 3*time.Minute)))
		if m.calm {
			end = m.clock.Add(time.Second)
		} else if m.goesWrong(d, 1) {
			end = in.Deadline.Add(time.Hour) // a budget allows nothing
		}
		m.drains[key] = end
		m.happened(eDrainBegan, in.Operation, in.Node, "")
	}
	useless := m.goesWrong(d, 0.1)
	return max(min(end.Sub(m.clock), in.Deadline.Sub(m.clock)), 0), func() (drain.Result, error) {
		kind, text := "", ""
		switch {
		case !n.gone && !n.Unschedulable:
			kind, text = activities.TypeUncordoned, "somebody uncordoned the node during the drain"
		case useless:
			kind, text = activities.TypeCannotDrain, "default/alone has no controller"
		case end.After(in.Deadline):
			kind, text = activities.TypeDrain, fmt.Sprintf("default/web-1 blocked by budget default/web at %s", m.clock.Sub(epoch))
		default:
			m.happened(eDrained, in.Operation, in.Node, "")
			return drain.Result{Node: in.Node}, nil
		}
		m.happened(eDrainEnded, in.Operation, in.Node, text)
		return drain.Result{}, fails(kind, "drain node "+in.Node+": "+text)
	}
}

// count is how many such events there were.
func (m *model) count(what, op, node string) (count int) {
	for _, e := range m.log {
		if e.what == what && e.op == op && e.node == node {
			count++
		}
	}
	return count
}

// runScript starts a script, or finds it running, and follows it to its end.
func (m *model) runScript(in activities.ScriptInput) (time.Duration, func() (activities.ScriptResult, error)) {
	key := fmt.Sprint(in.Operation, in.On.UID, in.Phase, in.Hop, in.Attempt)
	run := m.runs[key]
	what := fmt.Sprintf("script (%s) on node %s", in.Phase, in.Node)
	if run == nil && !m.clock.Before(in.Deadline) {
		return 0, func() (activities.ScriptResult, error) {
			return activities.ScriptResult{}, fails(activities.TypeScript, "the "+what+" could not be started before the deadline")
		}
	}
	if run == nil {
		run = m.startScript(in, key)
	}
	return max(run.end.Sub(m.clock), 0), func() (activities.ScriptResult, error) {
		switch run.exit {
		case 0:
			return activities.ScriptResult{}, nil
		case 75:
			return activities.ScriptResult{Again: true, Output: "the mirror is busy"}, nil
		}
		return activities.ScriptResult{}, fails(activities.TypeScript, fmt.Sprintf("%s: exit status %d: no space left on device (%s)", what, run.exit, key))
	}
}

// startScript draws how a script will end. One that would take longer than it may
// is stopped at its deadline, which counts as exit status 143.
func (m *model) startScript(in activities.ScriptInput, key string) *scriptRun {
	d := m.dice("script", key)
	run := &scriptRun{node: in.Node, phase: in.Phase, end: m.clock.Add(d.span(2*time.Second, draw(d, 30*time.Second, 5*time.Minute)))}
	switch trouble := m.goesWrong(d, 1.2); {
	case !trouble:
	case d.chance(40):
		run.exit = 1
	case d.chance(60):
		run.exit = 75
	default:
		run.end = in.Deadline.Add(time.Hour)
	}
	if run.end.After(in.Deadline) {
		run.end, run.exit = in.Deadline.Add(d.span(time.Second, 10*time.Second)), 143
	}
	m.runs[key] = run
	if in.Phase == activities.PhaseUpgrade {
		m.happened(eScript, in.Operation, in.Node, in.Target)
	}
	m.later(run.end, func() { m.scriptEnds(in, run, d) })
	return run
}

// scriptEnds is what a script has done to its node. A failed upgrade may have
// got as far as the new kubelet, and one that says all is well may not have.
func (m *model) scriptEnds(in activities.ScriptInput, run *scriptRun, d *dice) {
	n := m.nodes[in.Node]
	switch in.Phase {
	case activities.PhaseStage:
		m.happened(eStaged, in.Operation, in.Node, fmt.Sprint(run.exit))
	case activities.PhaseReset:
		n.Ready = run.exit != 0 && n.Ready
		m.happened(eReset, in.Operation, in.Node, fmt.Sprint(run.exit))
	case activities.PhaseUpgrade:
		if run.exit == 0 && !m.goesWrong(d, 0.1) || run.exit != 0 && d.chance(40) {
			n.Version, n.Ready = "v"+in.Target, false
			if !m.goesWrong(d, 0.3) {
				n.readyAt = m.clock.Add(d.span(time.Second, 40*time.Second))
				m.later(n.readyAt, func() {
					n.Ready = true
					m.happened(eReady, "", in.Node, "")
				})
			}
		}
		m.happened(eScriptEnd, in.Operation, in.Node, fmt.Sprint(run.exit))
	}
}

func (m *model) checkVersion(in activities.CheckVersionInput) (activities.CheckVersionResult, error) {
	if !plan.SameVersion(m.nodes[in.Node.Name].Version, in.Version) {
		return activities.CheckVersionResult{}, fails(activities.TypeVersion, "node "+in.Node.Name+": the script ended well but the kubelet is not at "+in.Version)
	}
	return activities.CheckVersionResult{}, nil
}

func (m *model) waitReady(in activities.WaitReadyInput) (time.Duration, func() (activities.WaitReadyResult, error)) {
	n := m.nodes[in.Node.Name]
	wait := in.Deadline.Sub(m.clock)
	switch {
	case !plan.SameVersion(n.Version, in.Version):
	case n.Ready:
		wait = 0
	case n.readyAt.After(m.clock):
		wait = min(wait, n.readyAt.Sub(m.clock))
	}
	return max(wait, 0), func() (activities.WaitReadyResult, error) {
		if !n.Ready || !plan.SameVersion(n.Version, in.Version) {
			return activities.WaitReadyResult{}, fails(activities.TypeNotReady, "node "+n.Name+" is not Ready at "+in.Version)
		}
		return activities.WaitReadyResult{}, nil
	}
}

func (m *model) recordVersion(in activities.RecordVersionInput) (activities.RecordVersionResult, error) {
	n := m.nodes[in.Node]
	if n.gone {
		return activities.RecordVersionResult{}, temporal.NewApplicationError("not found", "StatusError")
	}
	if n.Recorded != in.Version {
		n.Recorded = in.Version
		m.happened(eRecorded, in.Operation, in.Node, in.Version)
	}
	return activities.RecordVersionResult{}, nil
}

func (m *model) deleteNode(in activities.MachineInput) (activities.DeleteNodeResult, error) {
	if n := m.nodes[in.Node.Name]; !n.gone && n.UID == in.Node.UID {
		n.gone = true
		m.happened(eDeleted, m.operation, n.Name, "")
	}
	return activities.DeleteNodeResult{}, nil
}

func (m *model) destroyMachine(in activities.MachineInput) (activities.DestroyMachineResult, error) {
	if !m.destroyed[in.Node.Name] {
		m.destroyed[in.Node.Name] = true
		m.happened(eDestroyed, m.operation, in.Node.Name, "")
	}
	return activities.DestroyMachineResult{}, nil
}
