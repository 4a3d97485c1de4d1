// Package workflows holds Ebb's operations as durable Temporal workflows: what
// is done in which order, what is tried again, and what is put back. It decides;
// everything that touches the world is an activity.
package workflows

import (
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/operation"
	"ebb/internal/policy"
	"ebb/internal/version"
)

// execution is what the three kinds have in common: one workflow execution that
// has the cluster to itself from claim to release. Its ID is the workflow ID.
type execution struct {
	id      string
	cluster string
	from    clusterstate.State // the state a rollback goes back to; empty = the cluster may not be held
	next    version.Version    // of an upgrade: the stop of its route that comes first
	survey  activities.Survey
	status  operation.Status
	control control
	notes   warnings // the status shows them
	left    warnings // of notes: what drains have left behind
	dead    bool     // of the upgrade of one node: its kubelet does not live, so that it is left cordoned

	unattended string // why no reconciler looks at the cluster in Alert; empty = it does, or need not
}

func begin(ctx workflow.Context, kind operation.Kind, cluster string, target version.Version) (*execution, error) {
	e := &execution{id: workflow.GetInfo(ctx).WorkflowExecution.ID, cluster: cluster, control: newControl(ctx)}
	e.status = operation.Status{Operation: e.id, Kind: kind, Cluster: cluster, Target: target, Started: workflow.Now(ctx)}
	if err := e.answerStatus(ctx); err != nil {
		return e, err
	}
	return e, e.handleUpdates(ctx)
}

// claim takes the cluster and looks at it. Its error has ended the operation,
// which has touched nothing.
func (e *execution) claim(ctx workflow.Context, state clusterstate.State, route version.Route) error {
	e.step(ctx, "taking the cluster")
	claimed, err := e.take(ctx, activities.ClaimInput{Cluster: e.cluster, Operation: e.id, State: state, Route: route})
	if err != nil {
		return err
	}
	e.from, e.next = claimed.From, claimed.Next
	if claimed.TakenOver != "" {
		e.step(ctx, "cleaning up after %s", claimed.TakenOver)
		// Nobody else will: a cancellation does not stop it.
		_, err = call(e.detached(ctx, "take back the cordons of "+claimed.TakenOver), act.UncordonAll,
			activities.UncordonAllInput{Cluster: e.cluster, Operation: claimed.TakenOver, Holder: e.id})
	}
	if err == nil {
		e.survey, err = call(onAPI(ctx, "survey cluster "+e.cluster), act.Survey, activities.SurveyInput{Cluster: e.cluster})
	}
	if err != nil {
		return e.abort(ctx, err)
	}
	return nil
}

// take takes the cluster. What machines are like is asked for in activities of their own, when
// the decision needs it. Its error has ended the operation.
func (e *execution) take(ctx workflow.Context, in activities.ClaimInput) (activities.ClaimResult, error) {
	if in.State == clusterstate.Upgrading {
		in.Machines = &activities.MachineStates{}
	}
	claimed, err := call(onAPI(ctx, "take cluster "+e.cluster), act.Claim, in)
	if err == nil && claimed.Ask != nil {
		e.step(ctx, "looking at the machines")
		down, askErr := machinesDown(ctx, e.cluster, claimed.Ask.Nodes, claimed.Ask.Infra)
		if askErr != nil {
			return claimed, e.abort(ctx, askErr)
		}
		in.Machines = &activities.MachineStates{Asked: true, Down: down}
		claimed, err = call(onAPI(ctx, "take cluster "+e.cluster+", whose machines are known"), act.Claim, in)
	}
	if err != nil {
		return claimed, e.reject(ctx, err)
	}
	return claimed, nil
}

// reject ends an operation that did not get the cluster. A claim whose answer was
// lost, or that was cancelled in flight, may have got it after all, so the cluster
// is released unless the claim itself was refused; a release of what is not held
// changes nothing.
func (e *execution) reject(ctx workflow.Context, cause error) error {
	kind := kindOf(cause)
	if kind != operation.TypeRefused && kind != operation.TypeConfig {
		return e.abort(ctx, cause)
	}
	o := e.outcome(operation.TypeRefused, cause)
	if kind == operation.TypeConfig { // an attempt before this one may have got it
		o.Lock, o.LockFault = e.release(ctx, "", "", "")
	}
	return temporal.NewNonRetryableApplicationError(fmt.Sprintf("%s refused: %s", e.id, reason(cause)), operation.TypeRefused, nil, e.status, o)
}

// abort ends an operation that has touched nothing but the lock.
func (e *execution) abort(ctx workflow.Context, cause error) error {
	return e.fail(ctx, e.outcome(operation.TypeRefused, cause))
}

// rollBack ends an operation whose cordons are all that it has done: it takes them
// back and leaves the cluster as it was.
func (e *execution) rollBack(ctx workflow.Context, cause error, nodes []policy.Node) error {
	o := e.outcome(operation.TypeRolledBack, cause)
	o.Uncordon = e.uncordon(ctx, nodes)
	return e.fail(ctx, o)
}

// outcome begins the outcome of an operation that does not go through. The cluster
// goes back to the state it came from, or after a failure to Alert.
func (e *execution) outcome(reason string, cause error) operation.Outcome {
	o := operation.Outcome{
		Operation: e.id, Kind: e.status.Kind, Cluster: e.cluster, Reason: reason, Cause: causeOf(cause), State: e.from,
	}
	if reason == operation.TypeFailed {
		o.State = clusterstate.Alert
	}
	return o
}

// fail releases the cluster in the state of the outcome and returns the
// operation's error. A cancelled operation ends as cancelled, with the same in its
// details.
func (e *execution) fail(ctx workflow.Context, o operation.Outcome) error {
	e.step(ctx, "giving the cluster back")
	o.Lock, o.LockFault = e.release(ctx, o.State, o.String(), "")
	o.Unattended = e.unattended
	e.step(ctx, "ended: %s", o)
	if o.Cause.Cancelled {
		return temporal.NewCanceledError(o.String(), o.Reason, e.status, o)
	}
	return temporal.NewNonRetryableApplicationError(o.String(), o.Reason, nil, e.status, o)
}

// complete gives the cluster back after all went well. Its error says that the
// work is done and only the lock is left.
func (e *execution) complete(ctx workflow.Context, state clusterstate.State, reached version.Version, done operation.Outcome) error {
	lock, fault := e.release(ctx, state, "", reached)
	o := e.outcome(operation.TypeFailed, nil)
	o.Complete, o.State, o.Lock, o.LockFault = true, "", lock, fault
	o.Drained, o.Removal, o.Upgrade, o.Uncordon = done.Drained, done.Removal, done.Upgrade, done.Uncordon
	if lock == operation.LockReleased {
		e.step(ctx, "%s", o.Done())
		return nil
	}
	e.step(ctx, "ended: %s", o)
	return temporal.NewNonRetryableApplicationError(o.String(), operation.TypeFailed, nil, e.status, o)
}

// release gives the cluster back, cancelled or not, and returns what became of the
// lock. reached is the version that every node is at after an upgrade.
func (e *execution) release(ctx workflow.Context, state clusterstate.State, message string, reached version.Version) (operation.Lock, string) {
	if state == clusterstate.Running {
		message = ""
	}
	options := e.detached(ctx, "give cluster "+e.cluster+" back")
	if e.from == "" && !e.control.givenUp { // it is not known whether there is anything to give back: not worth a day
		uncancelled, _ := workflow.NewDisconnectedContext(ctx)
		options = onAPI(uncancelled, "give cluster "+e.cluster+" back, if it was taken")
	}
	result, err := call(options, act.Release, activities.ReleaseInput{
		Cluster: e.cluster, Operation: e.id, State: state, Message: message, Version: reached,
	})
	switch {
	case err != nil:
		return operation.LockHeld, e.whyLeft(err)
	case !result.Held && e.from != "":
		return operation.LockLost, ""
	case result.Unattended:
		e.attend(ctx)
	}
	return operation.LockReleased, ""
}

// attend resumes the reconciler of a cluster in Alert. Where that cannot be done, the
// status and the outcome say so: nobody looks at the cluster by itself.
func (e *execution) attend(ctx workflow.Context) {
	uncancelled, _ := workflow.NewDisconnectedContext(ctx)
	if _, err := call(onAPI(uncancelled, "resume the reconciler of "+e.cluster), act.Attend, activities.AttendInput{Cluster: e.cluster}); err != nil {
		e.unattended = reason(err)
		e.warn(ctx, operation.Unattended(e.unattended))
	}
}

// cordon makes a node unschedulable, unless it was.
func (e *execution) cordon(ctx workflow.Context, n policy.Node) error {
	e.mark(ctx, n.Name, operation.PhaseCordoning, 0, "")
	result, err := call(onAPI(ctx, "cordon "+n.Name), act.Cordon, e.on(n))
	if err != nil {
		return err
	}
	detail := ""
	if !result.Ours {
		detail = "was unschedulable before, and stays so"
	}
	e.mark(ctx, n.Name, operation.PhaseCordoned, 0, detail)
	return nil
}

func (e *execution) on(n policy.Node) activities.NodeInput {
	return activities.NodeInput{Cluster: e.cluster, Operation: e.id, Node: n.Name}
}

// drain makes attempts to drain a node until one succeeds, the attempts are used
// up, or the deadline would pass. Each attempt counts once, whatever happens to
// its worker; with no time left none is made.
func (e *execution) drain(ctx workflow.Context, n policy.Node, attempts int, deadline time.Time) error {
	for attempt := 1; ; attempt++ {
		settings, err := call(onAPI(ctx, "read the drain settings"), act.DrainSettings, activities.DrainSettingsInput{Cluster: e.cluster})
		if err != nil {
			return err
		}
		end := earlier(workflow.Now(ctx).Add(settings.Timeout), deadline)
		if !workflow.Now(ctx).Before(end) {
			return fmt.Errorf("drain node %s: no time left before the deadline %s", n.Name, deadline.UTC().Format(time.RFC3339))
		}
		e.mark(ctx, n.Name, operation.PhaseDraining, attempt, "")
		summary := fmt.Sprintf("drain %s (attempt %d of %d)", n.Name, attempt, attempts)
		done, err := execute(until(ctx, end, summary), act.Drain, activities.DrainInput{NodeInput: e.on(n), Settings: settings.Drain, Deadline: end})
		if err == nil {
			e.mark(ctx, n.Name, operation.PhaseDrained, attempt, strings.Join(done.Texts(), "; "))
			e.leave(ctx, done.Texts())
			return nil
		}
		again := workflow.Now(ctx).Add(settings.RetryInterval)
		if !retryable(err) || attempt >= attempts || !again.Before(deadline) {
			return err
		}
		e.mark(ctx, n.Name, operation.PhaseWaitingToRetry, attempt, reason(err))
		if err := e.waitToRetry(ctx, n.Name, settings.RetryInterval, "wait before the next attempt to drain "+n.Name); err != nil {
			return err
		}
	}
}

// retryable reports whether a failed attempt to drain may be followed by another one.
func retryable(err error) bool {
	return !temporal.IsCanceledError(err) && (kindOf(err) == operation.TypeDrain || temporal.IsTimeoutError(err))
}

// cordonAndDrain cordons all nodes, so that no pod moves from one to another that
// goes too, and then drains them.
func (e *execution) cordonAndDrain(ctx workflow.Context, nodes []policy.Node, parallel, attempts int) error {
	e.step(ctx, "cordoning %s", strings.Join(policy.Names(nodes), ", "))
	if err := each(ctx, nodes, len(nodes), e.cordon); err != nil {
		return err
	}
	e.step(ctx, "draining %s", strings.Join(policy.Names(nodes), ", "))
	ctx, giveUp := workflow.WithCancel(ctx)
	return each(ctx, nodes, parallel, func(ctx workflow.Context, n policy.Node) error {
		err := e.awaitResume(ctx)
		if err == nil {
			err = e.drain(ctx, n, attempts, e.status.Deadline)
		}
		if err != nil {
			e.mark(ctx, n.Name, operation.PhaseFailed, 0, reason(err))
			giveUp() // it will all be taken back: stop evicting elsewhere
		}
		return err
	})
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
