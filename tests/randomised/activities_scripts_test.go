package randomised

import (
	"fmt"
	"time"

	"ebb/activities"
	"ebb/internal/drain"
	"ebb/internal/operation"
)

func (m *model) drainSettings(activities.DrainSettingsInput) (activities.DrainSettings, error) {
	return m.s.drain, nil
}

// drain empties a node after a while, unless a pod is blocked until the end of the
// attempt. An attempt that another worker goes on with ends when it would have ended.
func (m *model) drain(in activities.DrainInput) (time.Duration, func() (drain.Result, error)) {
	n := m.nodes[in.Node]
	key := fmt.Sprint(in.Operation, in.Node, in.Deadline)
	rnd := m.random("drain", in.Operation, in.Node, m.countEvents(eventDrainStarted, in.Operation, in.Node))
	end, started := m.drainEnds[key]
	if !started {
		end = m.clock.Add(rnd.between(time.Second, draw(rnd, 5*time.Second, time.Minute, 3*time.Minute)))
		if m.faultsOff {
			end = m.clock.Add(time.Second)
		} else if m.nodeFault(rnd, 1) {
			end = in.Deadline.Add(time.Hour) // a budget allows nothing
		}
		m.drainEnds[key] = end
		m.emit(eventDrainStarted, in.Operation, in.Node, "")
	}
	hopeless := m.nodeFault(rnd, 0.1)
	return max(min(end.Sub(m.clock), in.Deadline.Sub(m.clock)), 0), func() (drain.Result, error) {
		kind, text := "", ""
		switch {
		case !n.deleted && !n.Unschedulable:
			kind, text = operation.TypeUncordoned, "somebody uncordoned the node during the drain"
		case hopeless:
			kind, text = operation.TypeCannotDrain, "default/alone has no controller"
		case end.After(in.Deadline):
			kind, text = operation.TypeDrain, fmt.Sprintf("default/web-1 blocked by budget default/web at %s", m.clock.Sub(epoch))
		default:
			m.emit(eventDrained, in.Operation, in.Node, "")
			return drain.Result{DrainLeft: operation.DrainLeft{Node: in.Node}}, nil
		}
		m.emit(eventDrainFailed, in.Operation, in.Node, text)
		return drain.Result{}, permanentError(kind, "drain node "+in.Node+": "+text)
	}
}

// scriptRun is a script on a node. It is detached: it runs on whoever follows it.
type scriptRun struct {
	node, phase string
	end         time.Time
	exit        int
}

// Exit codes of a script that is not done.
const (
	exitFailed     = 1
	exitTryAgain   = 75  // sysexits' EX_TEMPFAIL: the script asks to be run again
	exitTerminated = 143 // killed by SIGTERM, at its deadline
)

// runScript starts a script, or finds it running, and follows it to its end.
func (m *model) runScript(in activities.ScriptInput) (time.Duration, func() (activities.ScriptResult, error)) {
	key := fmt.Sprint(in.Operation, in.On.UID, in.Phase, in.Hop, in.Attempt)
	run := m.scripts[key]
	what := fmt.Sprintf("script (%s) on node %s", in.Phase, in.Node)
	if run == nil && !m.clock.Before(in.Deadline) {
		return 0, func() (activities.ScriptResult, error) {
			return activities.ScriptResult{}, permanentError(operation.TypeScript, "the "+what+" could not be started before the deadline")
		}
	}
	if run == nil {
		run = m.startScript(in, key)
	}
	return max(run.end.Sub(m.clock), 0), func() (activities.ScriptResult, error) {
		switch run.exit {
		case 0:
			return activities.ScriptResult{}, nil
		case exitTryAgain:
			return activities.ScriptResult{Again: true, Output: "the mirror is busy"}, nil
		}
		return activities.ScriptResult{}, permanentError(operation.TypeScript, fmt.Sprintf("%s: exit status %d: no space left on device (%s)", what, run.exit, key))
	}
}

// startScript draws how a script will end. One that would take longer than it may
// is terminated within seconds after its deadline.
func (m *model) startScript(in activities.ScriptInput, key string) *scriptRun {
	rnd := m.random("script", key)
	run := &scriptRun{node: in.Node, phase: in.Phase, end: m.clock.Add(rnd.between(2*time.Second, draw(rnd, 30*time.Second, 5*time.Minute)))}
	switch fails := m.nodeFault(rnd, 1.2); {
	case !fails:
	case rnd.chance(40):
		run.exit = exitFailed
	case rnd.chance(60):
		run.exit = exitTryAgain
	default:
		run.end = in.Deadline.Add(time.Hour)
	}
	if run.end.After(in.Deadline) {
		run.end, run.exit = in.Deadline.Add(rnd.between(time.Second, 10*time.Second)), exitTerminated
	}
	m.scripts[key] = run
	if iso := m.nodes[in.Node].iso; m.settings.Upgrade.ISO && in.Phase != activities.PhaseReset && iso != in.Target {
		m.violated("scriptHasItsISO", fmt.Sprintf("the script (%s) for %s begins on %s with the ISO of %q", in.Phase, in.Target, in.Node, iso), "it waits for it, and fails")
	}
	if in.Phase == activities.PhaseUpgrade {
		m.emit(eventScriptStarted, in.Operation, in.Node, string(in.Target))
	}
	m.schedule(run.end, func() { m.endScript(in, run, rnd) })
	return run
}

// endScript does what a script has done to its node. A failed upgrade may have
// got as far as the new kubelet, and one that says all is well may not have.
func (m *model) endScript(in activities.ScriptInput, run *scriptRun, rnd *random) {
	n := m.nodes[in.Node]
	switch in.Phase {
	case activities.PhaseStage:
		m.emit(eventStaged, in.Operation, in.Node, fmt.Sprint(run.exit))
	case activities.PhaseReset:
		n.Ready = run.exit != 0 && n.Ready
		n.inEtcd = n.inEtcd && (run.exit != 0 || rnd.chance(30)) // it ends well also when it could not leave
		m.emit(eventReset, in.Operation, in.Node, fmt.Sprint(run.exit))
	case activities.PhaseUpgrade:
		if run.exit == 0 && !m.nodeFault(rnd, 0.1) || run.exit != 0 && rnd.chance(40) {
			m.upgradeKubelet(n, in, rnd)
		}
		m.emit(eventScriptEnded, in.Operation, in.Node, fmt.Sprint(run.exit))
	}
}

// upgradeKubelet restarts the kubelet at the new version; most become Ready soon.
func (m *model) upgradeKubelet(n *modelNode, in activities.ScriptInput, rnd *random) {
	n.Version, n.Ready = in.Target, false
	if m.nodeFault(rnd, 0.3) {
		return
	}
	n.readyAt = m.clock.Add(rnd.between(time.Second, 40*time.Second))
	m.schedule(n.readyAt, func() {
		n.Ready = true
		m.emit(eventReady, "", in.Node, "")
	})
}
