package workflows

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"ebb/activities"
	"ebb/internal/operation"
	"ebb/internal/policy"
	"ebb/internal/version"
)

// UpgradeNode upgrades one node: it takes the load off, runs the script, and puts
// the load back, whether the script went well or not. It can be cancelled until
// the script starts; a script that has started is seen through to the end, for
// half a kubeadm upgrade is worse than one more upgraded node.
func UpgradeNode(ctx workflow.Context, in operation.UpgradeNodeInput) (operation.UpgradeNodeResult, error) {
	e, err := beginNode(ctx, in)
	if err != nil {
		return operation.UpgradeNodeResult{}, err
	}
	result, err := e.upgradeNode(ctx, in)
	// 10. Whatever has become of it, detach the ISO.
	if attachesISO(ctx, in.ISO) {
		e.leaveISO(ctx, e.detachISO(ctx, in.Node, in.Target))
	}
	result.Warnings = e.left.bounded()
	return result, err
}

// upgradeNode is all of it but the end.
func (e *execution) upgradeNode(ctx workflow.Context, in operation.UpgradeNodeInput) (operation.UpgradeNodeResult, error) {
	n := in.Node
	// 1. Skip a node that is done.
	now, skip, err := e.finished(ctx, n, in.Target)
	if err != nil || skip {
		return operation.UpgradeNodeResult{Skipped: skip}, nodeError(n, operation.StepCheck, err, nil)
	}
	e.dead = now.Unfinished && !now.Ready
	// 2. Attach the ISO, when the script needs one. It was when the script fetched what it
	// needs, which may be hours ago.
	if attachesISO(ctx, in.ISO) {
		if err := e.attachISO(ctx, n, in.Target); err != nil {
			return operation.UpgradeNodeResult{}, nodeError(n, operation.StepISO, err, nil)
		}
	}
	// 3. Cordon it, unless it was.
	if err := e.cordonAgain(ctx, now); err != nil {
		return operation.UpgradeNodeResult{}, e.failNode(ctx, n, operation.StepCordon, err)
	}
	// 4. Drain it, unless an upgrade before this one has, and its kubelet does not live.
	if !e.dead {
		err = e.drain(ctx, n, in.Retries+1, in.Deadline)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return operation.UpgradeNodeResult{}, e.failNode(ctx, n, operation.StepDrain, err)
	}
	// 5. Run the script. From here on a cancellation waits for the end.
	ctx, _ = workflow.NewDisconnectedContext(ctx)
	s := script{phase: activities.PhaseUpgrade, shown: operation.PhaseUpgrading, target: in.Target, hop: in.Hop, retries: in.Retries}
	if err := e.runScript(ctx, s, n, scriptDeadline(ctx, in)); err != nil {
		return operation.UpgradeNodeResult{}, e.failNode(ctx, n, operation.StepScript, err)
	}
	// 6. The kubelet on it has to be the new one.
	e.mark(ctx, n.Name, operation.PhaseVerifying, 0, "")
	if _, err := call(overSSH(ctx, fmt.Sprintf("is the kubelet of %s at %s?", n.Name, in.Target)), act.CheckVersion,
		activities.CheckVersionInput{Cluster: e.cluster, Node: n, Version: in.Target}); err != nil {
		return operation.UpgradeNodeResult{}, e.failNode(ctx, n, operation.StepVersion, err)
	}
	// 7. A kubelet that does not live gets no pods.
	if err := e.awaitKubelet(ctx, n, in); err != nil {
		return operation.UpgradeNodeResult{}, e.failNode(ctx, n, operation.StepReady, err)
	}
	// 8. Uncordon it, if the cordon is ours.
	e.mark(ctx, n.Name, operation.PhaseUncordoning, 0, "")
	if _, err := call(e.detached(ctx, "uncordon "+n.Name), act.Uncordon, e.on(n)); err != nil {
		return operation.UpgradeNodeResult{}, e.failNode(ctx, n, operation.StepUncordon, err)
	}
	// 9. Wait until it is Ready and stays so, and record that it is done.
	return operation.UpgradeNodeResult{}, nodeError(n, operation.StepReady, e.confirm(ctx, n, in), nil)
}

// scriptDeadline is by when the script has to end. It has its whole time, however long the
// drain has taken: a kubeadm that is killed half-way leaves half a node.
func scriptDeadline(ctx workflow.Context, in operation.UpgradeNodeInput) time.Time {
	if in.ScriptTimeout > 0 {
		return workflow.Now(ctx).Add(in.ScriptTimeout)
	}
	return in.Deadline
}

// beginNode is the operation as one of its nodes sees it.
func beginNode(ctx workflow.Context, in operation.UpgradeNodeInput) (*execution, error) {
	return beginPart(ctx, in, fmt.Sprintf("upgrading %s to %s", in.Node.Name, in.Target))
}

// beginPart is beginNode for a workflow that does a part of the upgrade of a node.
func beginPart(ctx workflow.Context, in operation.UpgradeNodeInput, step string) (*execution, error) {
	e := &execution{id: in.Operation, cluster: in.Cluster, control: newControl(ctx)}
	e.survey.Infra.Timeout = in.InfraTimeout
	e.status = operation.Status{Operation: in.Operation, Kind: operation.KindUpgrade, Cluster: in.Cluster, Target: in.Target, Started: workflow.Now(ctx), Deadline: in.Deadline}
	e.step(ctx, "%s", step)
	e.follow(ctx, []policy.Node{in.Node})
	e.hearGiveUp(ctx)
	if err := e.answerStatus(ctx); err != nil {
		return e, err
	}
	return e, e.handleNodeUpdates(ctx)
}

// finished looks at the node anew: the survey may be hours old.
func (e *execution) finished(ctx workflow.Context, n policy.Node, target version.Version) (now policy.Node, done bool, err error) {
	e.mark(ctx, n.Name, operation.PhaseChecking, 0, "")
	result, err := call(onAPI(ctx, "is "+n.Name+" done already?"), act.Node, e.on(n))
	now = result.Node
	if err == nil && now.UID != n.UID && looksAgain(ctx) {
		err = fmt.Errorf("node %s is another one than at the start of the upgrade", n.Name)
	}
	if err != nil || policy.Finished(now, target) {
		return now, err == nil, err
	}
	if n.Role == policy.Worker {
		return now, false, nil
	}
	faults, err := e.controlPlaneFaults(ctx, n.Name)
	if err == nil && len(faults) > 0 {
		err = errors.New("not started: " + strings.Join(faults, "; "))
	}
	return now, false, err
}

// cordonAgain cordons a node. The cordon with which an earlier upgrade has left it is
// taken over, so that it is taken back in the end.
func (e *execution) cordonAgain(ctx workflow.Context, now policy.Node) error {
	if now.Unfinished {
		if _, err := call(onAPI(ctx, "take over the cordon on "+now.Name), act.TakeCordonOver, e.on(now)); err != nil {
			return err
		}
	}
	return e.cordon(ctx, now)
}

// awaitKubelet waits until the kubelet lives: the node is Ready at the target.
func (e *execution) awaitKubelet(ctx workflow.Context, n policy.Node, in operation.UpgradeNodeInput) error {
	if workflow.GetVersion(ctx, "ready-before-uncordon", workflow.DefaultVersion, 1) == workflow.DefaultVersion {
		return nil
	}
	e.dead = true
	if err := e.awaitReady(ctx, n, in, 0); err != nil {
		return err
	}
	e.dead = false
	return nil
}

// awaitReady waits until a node is Ready at the target and, with steady set, until the
// API server on it answers steadily.
func (e *execution) awaitReady(ctx workflow.Context, n policy.Node, in operation.UpgradeNodeInput, steady time.Duration) error {
	e.mark(ctx, n.Name, operation.PhaseWaitingForReady, 0, "")
	deadline := workflow.Now(ctx).Add(in.ReadyTimeout)
	_, err := call(until(ctx, deadline, "wait until "+n.Name+" is Ready"), act.WaitReady,
		activities.WaitReadyInput{Cluster: e.cluster, Node: n, Version: in.Target, Steady: steady, Deadline: deadline})
	return err
}

func (e *execution) confirm(ctx workflow.Context, n policy.Node, in operation.UpgradeNodeInput) error {
	if err := e.awaitReady(ctx, n, in, in.Steady); err != nil {
		return err
	}
	_, err := call(onAPI(ctx, fmt.Sprintf("record that %s is at %s", n.Name, in.Target)), act.RecordVersion,
		activities.RecordVersionInput{NodeInput: e.on(n), Version: in.Target})
	e.mark(ctx, n.Name, operation.PhaseDone, 0, "")
	return err
}

// failNode puts the load back on a node that could not be upgraded, unless its kubelet
// does not live, and returns the error that says so.
func (e *execution) failNode(ctx workflow.Context, n policy.Node, step operation.Step, cause error) error {
	var back operation.Uncordon
	if e.dead {
		back = e.leaveCordoned(ctx, n)
	} else {
		back = e.uncordon(ctx, []policy.Node{n})
	}
	e.mark(ctx, n.Name, operation.PhaseFailed, 0, reason(cause))
	return nodeError(n, step, cause, &back)
}

// leaveCordoned leaves the cordon on a node whose kubelet does not live, and notes it for
// the upgrade that is started again. One that lives after all gives its cordon back.
func (e *execution) leaveCordoned(ctx workflow.Context, n policy.Node) (back operation.Uncordon) {
	left, err := call(e.detached(ctx, "leave "+n.Name+" cordoned"), act.LeaveCordoned,
		activities.LeaveCordonedInput{NodeInput: e.on(n), Version: e.status.Target})
	switch {
	case err == nil && left.Lives:
		return e.uncordon(ctx, []policy.Node{n})
	case err != nil:
		back.NotUncordoned = []operation.NodeFault{{Node: n.Name, Text: e.whyLeft(err)}}
	case left.Ours:
		back.NotUncordoned = []operation.NodeFault{{Node: n.Name, Text: "its kubelet does not live; the upgrade that is started again uncordons it"}}
	}
	return back
}

// nodeError returns the error of a node: which node and machine, which step, and
// what was taken back. It is nil when cause is.
func nodeError(n policy.Node, step operation.Step, cause error, back *operation.Uncordon) error {
	o := operation.NodeOutcome{Node: n.Name, Machine: n.MachineID, Step: step, Cause: causeOf(cause), Uncordon: back}
	switch {
	case cause == nil, o.Cause.Cancelled && back == nil:
		return cause
	case o.Cause.Cancelled:
		return temporal.NewCanceledError(o.String(), o)
	}
	return temporal.NewNonRetryableApplicationError(o.String(), operation.TypeFailed, nil, o)
}

// script is one phase of an upgrade script, run again when it asks for that.
type script struct {
	phase   string // activities.PhaseStage or PhaseUpgrade
	shown   operation.Phase
	target  version.Version
	hop     int
	retries int
}

func (e *execution) runScript(ctx workflow.Context, s script, n policy.Node, deadline time.Time) error {
	for attempt := 1; ; attempt++ {
		e.mark(ctx, n.Name, s.shown, attempt, "")
		result, err := call(until(ctx, deadline, fmt.Sprintf("%s %s with the script", s.phase, n.Name)), act.RunScript, activities.ScriptInput{
			NodeInput: e.on(n), On: n, Phase: s.phase, Target: s.target, Hop: s.hop, Attempt: attempt, Deadline: deadline,
		})
		switch {
		case err != nil:
			return err
		case !result.Again:
			return nil
		case attempt > s.retries:
			return fmt.Errorf("the script asked for another try %d times: %s", attempt, result.Output)
		}
		e.mark(ctx, n.Name, operation.PhaseWaitingToRetry, attempt, "the script asked for another try")
		if err := e.waitToRetry(ctx, n.Name, scriptRetryInterval, "the script on "+n.Name+" asked for another try"); err != nil {
			return err
		}
	}
}

// scriptRetryInterval is the wait before a script that exited with 75 is run again.
const scriptRetryInterval = 30 * time.Second
