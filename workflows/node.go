package workflows

import (
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"ebb/activities"
	"ebb/internal/plan"
)

// UpgradeNodeInput is one node of an upgrade.
type UpgradeNodeInput struct {
	Cluster      string        `json:"cluster"`
	Operation    string        `json:"operation"`
	Node         plan.Node     `json:"node"`
	Target       string        `json:"target"`
	Hop          int           `json:"hop,omitempty"` // which hop of the upgrade this is
	Retries      int           `json:"retries"`       // of the drain, and of a script that asks for it
	ReadyTimeout time.Duration `json:"readyTimeout"`
	Steady       time.Duration `json:"steady"`
	Deadline     time.Time     `json:"deadline"` // for the drain and the script
}

// UpgradeNodeResult says whether there was something to do.
type UpgradeNodeResult struct {
	Skipped bool `json:"skipped,omitempty"`
}

// UpgradeNode upgrades one node: it takes the load off, runs the script, and puts
// the load back, whether the script went well or not. It can be cancelled until
// the script starts; a script that has started is seen through to the end, for
// half a kubeadm upgrade is worse than one more upgraded node.
func UpgradeNode(ctx workflow.Context, in UpgradeNodeInput) (UpgradeNodeResult, error) {
	o, err := beginNode(ctx, in)
	if err != nil {
		return UpgradeNodeResult{}, err
	}
	n := in.Node
	// 1. Skip a node that is done.
	skip, err := o.finished(ctx, n, in.Target)
	if err != nil || skip {
		return UpgradeNodeResult{Skipped: skip}, failed(n, "check", err)
	}
	// 2. Cordon it, unless it was.
	if err := o.cordon(ctx, n); err != nil {
		return UpgradeNodeResult{}, o.nodeFailed(ctx, n, "cordon", err)
	}
	// 3. Drain it.
	if err := o.drain(ctx, n, in.Retries+1, in.Deadline); err != nil {
		return UpgradeNodeResult{}, o.nodeFailed(ctx, n, "drain", err)
	}
	// 4. Run the script. From here on a cancellation waits for the end.
	if ctx.Err() != nil {
		return UpgradeNodeResult{}, o.nodeFailed(ctx, n, "drain", ctx.Err())
	}
	ctx, _ = workflow.NewDisconnectedContext(ctx)
	s := script{phase: activities.PhaseUpgrade, shown: RunScript, target: in.Target, hop: in.Hop, retries: in.Retries}
	if err := o.run(ctx, s, n, in.Deadline); err != nil {
		return UpgradeNodeResult{}, o.nodeFailed(ctx, n, "script", err)
	}
	// 5. The kubelet on it has to be the new one.
	o.mark(ctx, n.Name, Verifying, 0, "")
	if _, err := call(overSSH(ctx, "is the kubelet of "+n.Name+" at "+in.Target+"?"), act.CheckVersion,
		activities.CheckVersionInput{Cluster: o.cluster, Node: n, Version: in.Target}); err != nil {
		return UpgradeNodeResult{}, o.nodeFailed(ctx, n, "version check", err)
	}
	// 6. Uncordon it, if the cordon is ours.
	o.mark(ctx, n.Name, Uncordoning, 0, "")
	if _, err := call(settling(ctx, "uncordon "+n.Name), act.Uncordon, o.on(n)); err != nil {
		return UpgradeNodeResult{}, o.nodeFailed(ctx, n, "uncordon", err)
	}
	// 7. Wait until it is Ready, and record that it is done.
	return UpgradeNodeResult{}, failed(n, "ready", o.confirm(ctx, n, in))
}

// beginNode is the operation as one of its nodes sees it.
func beginNode(ctx workflow.Context, in UpgradeNodeInput) (*operation, error) {
	o := &operation{id: in.Operation, cluster: in.Cluster, control: newControl()}
	o.status = Status{Operation: in.Operation, Kind: KindUpgrade, Cluster: in.Cluster, Target: in.Target, Started: workflow.Now(ctx), Deadline: in.Deadline}
	o.step(ctx, "upgrading %s to %s", in.Node.Name, in.Target)
	o.follow(ctx, []plan.Node{in.Node})
	if err := o.track(ctx); err != nil {
		return o, err
	}
	return o, o.steerNode(ctx)
}

// finished looks at the node anew: the survey may be hours old.
func (o *operation) finished(ctx workflow.Context, n plan.Node, target string) (bool, error) {
	o.mark(ctx, n.Name, Checking, 0, "")
	now, err := call(onAPI(ctx, "is "+n.Name+" done already?"), act.Node, o.on(n))
	if err != nil || plan.Finished(now.Node, target) {
		return err == nil, err
	}
	if n.Role == plan.Worker {
		return false, nil
	}
	faults, err := o.controlPlaneFaults(ctx, n.Name)
	if err == nil && len(faults) > 0 {
		err = failure("not started: " + strings.Join(faults, "; "))
	}
	return false, err
}

func (o *operation) confirm(ctx workflow.Context, n plan.Node, in UpgradeNodeInput) error {
	o.mark(ctx, n.Name, WaitReady, 0, "")
	deadline := workflow.Now(ctx).Add(in.ReadyTimeout)
	if _, err := call(until(ctx, deadline, "wait until "+n.Name+" is Ready"), act.WaitReady,
		activities.WaitReadyInput{Cluster: o.cluster, Node: n, Version: in.Target, Steady: in.Steady, Deadline: deadline}); err != nil {
		return err
	}
	_, err := call(onAPI(ctx, "record that "+n.Name+" is at "+in.Target), act.RecordVersion,
		activities.RecordVersionInput{NodeInput: o.on(n), Version: in.Target})
	o.mark(ctx, n.Name, Done, 0, "")
	return err
}

// nodeFailed puts the load back on a node that could not be upgraded.
func (o *operation) nodeFailed(ctx workflow.Context, n plan.Node, step string, cause error) error {
	back := o.uncordon(ctx, []plan.Node{n})
	o.mark(ctx, n.Name, Failed, 0, reason(cause))
	if temporal.IsCanceledError(cause) {
		return temporal.NewCanceledError(fmt.Sprintf("node %s: cancelled during %s; %s", n.Name, step, back))
	}
	return failed(n, step+" ("+back+")", cause)
}

// failed is the error of a node: which node and machine, and which step. It is
// nil when cause is.
func failed(n plan.Node, step string, cause error) error {
	if cause == nil || temporal.IsCanceledError(cause) {
		return cause
	}
	return temporal.NewNonRetryableApplicationError(
		fmt.Sprintf("node %s (machine %s), step %s: %s", n.Name, n.MachineID, step, reason(cause)), ErrFailed, nil)
}

// script is one phase of an upgrade script, run again when it asks for that.
type script struct {
	phase   string // activities.PhaseStage or PhaseUpgrade
	shown   Phase
	target  string
	hop     int
	retries int
}

func (o *operation) run(ctx workflow.Context, s script, n plan.Node, deadline time.Time) error {
	for attempt := 1; ; attempt++ {
		o.mark(ctx, n.Name, s.shown, attempt, "")
		result, err := call(until(ctx, deadline, fmt.Sprintf("%s %s with the script", s.phase, n.Name)), act.RunScript, activities.ScriptInput{
			NodeInput: o.on(n), On: n, Phase: s.phase, Target: s.target, Hop: s.hop, Attempt: attempt, Deadline: deadline,
		})
		switch {
		case err != nil:
			return err
		case !result.Again:
			return nil
		case attempt > s.retries:
			return failure(fmt.Sprintf("the script asked for another try %d times: %s", attempt, result.Output))
		}
		o.mark(ctx, n.Name, WaitRetry, attempt, "the script asked for another try")
		if err := o.wait(ctx, n.Name, scriptRetryInterval, "the script on "+n.Name+" asked for another try"); err != nil {
			return err
		}
	}
}

// scriptRetryInterval is the wait before a script that exited with 75 is run again.
const scriptRetryInterval = 30 * time.Second
