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
	"ebb/internal/plan"
)

// Kind is what an operation does; it is also the workflow type.
type Kind string

// Kinds of operations.
const (
	KindDrain     Kind = "Drain"
	KindScaleDown Kind = "ScaleDown"
	KindUpgrade   Kind = "Upgrade"
)

// Types of the errors that an operation ends with.
const (
	ErrRefused    = "Refused"    // nothing was touched
	ErrRolledBack = "RolledBack" // everything that was done was taken back
	ErrFailed     = "Failed"     // the cluster is in Alert
)

// operation is what the three kinds have in common: one workflow execution that
// has the cluster to itself from claim to release. Its ID is the workflow ID.
type operation struct {
	id      string
	cluster string
	from    clusterstate.State // the state a rollback goes back to
	station int                // of an upgrade: which hop, or after them the target, is first
	survey  activities.Survey
	status  Status
	control control
}

func begin(ctx workflow.Context, kind Kind, cluster, target string) (*operation, error) {
	o := &operation{id: workflow.GetInfo(ctx).WorkflowExecution.ID, cluster: cluster, control: newControl()}
	o.status = Status{Operation: o.id, Kind: kind, Cluster: cluster, Target: target, Started: workflow.Now(ctx)}
	if err := o.track(ctx); err != nil {
		return o, err
	}
	return o, o.steer(ctx)
}

// claim takes the cluster and looks at it. A claim that fails has touched nothing.
func (o *operation) claim(ctx workflow.Context, state clusterstate.State, hops ...string) error {
	o.step(ctx, "taking the cluster")
	claimed, err := call(onAPI(ctx, "take cluster "+o.cluster), act.Claim, activities.ClaimInput{
		Cluster: o.cluster, Operation: o.id, State: state, Target: o.status.Target, Hops: hops,
	})
	if err != nil {
		return o.refuse(ctx, err)
	}
	o.from, o.station = claimed.From, claimed.Station
	if claimed.TakenOver != "" {
		o.step(ctx, "cleaning up after %s", claimed.TakenOver)
		// Nobody else will: a cancellation does not stop it.
		_, err = call(settling(ctx, "take back the cordons of "+claimed.TakenOver), act.UncordonAll,
			activities.UncordonAllInput{Cluster: o.cluster, Operation: claimed.TakenOver, Holder: o.id})
	}
	if err == nil {
		o.survey, err = call(onAPI(ctx, "survey cluster "+o.cluster), act.Survey, activities.SurveyInput{Cluster: o.cluster})
	}
	if err != nil {
		return o.giveBack(ctx, err)
	}
	return nil
}

// versionRelease is the change that added a release after a claim that met a
// wrong configuration.
const versionRelease = "release-after-config"

// refuse ends an operation that did not get the cluster. A claim whose answer was
// lost, or that was cancelled in flight, may have got it after all, so it is
// released all the same; a release of what is not held changes nothing.
func (o *operation) refuse(ctx workflow.Context, err error) error {
	if kind := kindOf(err); kind == activities.TypeRefused || kind == activities.TypeConfig {
		if kind == activities.TypeConfig && workflow.GetVersion(ctx, versionRelease, workflow.DefaultVersion, 1) >= 1 { // an attempt before this one may have got it
			o.release(ctx, "", "", "")
		}
		return temporal.NewNonRetryableApplicationError(fmt.Sprintf("%s refused: %s", o.id, reason(err)), ErrRefused, nil)
	}
	return o.giveBack(ctx, err)
}

// giveBack ends an operation that has touched nothing but the lock.
func (o *operation) giveBack(ctx workflow.Context, err error) error {
	return o.end(ctx, err, ErrRefused, o.from, "nothing was changed")
}

// end releases the cluster in the given state and makes the operation's error:
// what was done about it, in which state the cluster is now, and last, as it may
// be long, what went wrong. A cancelled operation ends as cancelled, with the same
// in its details.
func (o *operation) end(ctx workflow.Context, cause error, kind string, state clusterstate.State, done string) error {
	text := fmt.Sprintf("%s of cluster %s (%s): %s", o.status.Kind, o.cluster, o.id, done)
	if state != "" {
		text += fmt.Sprintf("; the cluster is in state %s", state)
	}
	o.step(ctx, "giving the cluster back")
	if problem := o.release(ctx, state, text+"; cause: "+reason(cause), ""); problem != "" {
		text += "; " + problem
	}
	text += "; cause: " + reason(cause)
	o.step(ctx, "ended: %s", text)
	if temporal.IsCanceledError(cause) {
		return temporal.NewCanceledError(text, kind, o.status)
	}
	return temporal.NewNonRetryableApplicationError(text, kind, nil, o.status)
}

// release gives the cluster back, cancelled or not, and says what was wrong with that.
func (o *operation) release(ctx workflow.Context, state clusterstate.State, message, version string) (problem string) {
	if state == clusterstate.Running {
		message = ""
	}
	back := settling(ctx, "give cluster "+o.cluster+" back")
	if o.from == "" { // it is not known whether there is anything to give back: not worth a day
		detached, _ := workflow.NewDisconnectedContext(ctx)
		back = onAPI(detached, "give cluster "+o.cluster+" back, if it was taken")
	}
	result, err := call(back, act.Release, activities.ReleaseInput{
		Cluster: o.cluster, Operation: o.id, State: state, Message: message, Version: version,
	})
	switch {
	case err != nil:
		return "the lock could not be released: " + reason(err)
	case !result.Held && o.from != "":
		return "somebody else had taken the lock away"
	}
	return ""
}

// finish gives the cluster back after all went well. An error says that the work
// is done and only the lock is left.
func (o *operation) finish(ctx workflow.Context, state clusterstate.State, version, done string) error {
	if problem := o.release(ctx, state, "", version); problem != "" {
		text := fmt.Sprintf("%s of cluster %s (%s): %s, but %s", o.status.Kind, o.cluster, o.id, done, problem)
		o.step(ctx, "ended: %s", text)
		return temporal.NewNonRetryableApplicationError(text, ErrFailed, nil, o.status)
	}
	o.step(ctx, "%s", done)
	return nil
}

// cordon makes a node unschedulable, unless it was.
func (o *operation) cordon(ctx workflow.Context, n plan.Node) error {
	o.mark(ctx, n.Name, Cordoning, 0, "")
	result, err := call(onAPI(ctx, "cordon "+n.Name), act.Cordon, o.on(n))
	if err != nil {
		return err
	}
	detail := ""
	if !result.Ours {
		detail = "was unschedulable before, and stays so"
	}
	o.mark(ctx, n.Name, Cordoned, 0, detail)
	return nil
}

// uncordon takes back this operation's cordons on these nodes, whatever happened
// before: a node without one is left as it is. It says what it did.
func (o *operation) uncordon(ctx workflow.Context, nodes []plan.Node) string {
	var done, left []string
	for _, n := range nodes {
		result, err := call(settling(ctx, "uncordon "+n.Name), act.Uncordon, o.on(n))
		switch {
		case err != nil:
			left = append(left, fmt.Sprintf("%s (%s)", n.Name, reason(err)))
		case result.Uncordoned:
			done = append(done, n.Name)
			o.mark(ctx, n.Name, RolledBack, 0, "")
		}
	}
	text := "no node bore a cordon of this operation"
	if len(done) > 0 {
		text = "uncordoned " + strings.Join(done, ", ")
	}
	if len(left) > 0 {
		text += "; could not uncordon " + strings.Join(left, ", ")
	}
	return text
}

func (o *operation) on(n plan.Node) activities.NodeInput {
	return activities.NodeInput{Cluster: o.cluster, Operation: o.id, Node: n.Name}
}

// drain makes attempts to drain a node until one succeeds, the attempts are used
// up, or the deadline would pass. Each attempt counts once, whatever happens to
// its worker; with no time left none is made.
func (o *operation) drain(ctx workflow.Context, n plan.Node, attempts int, deadline time.Time) error {
	for attempt := 1; ; attempt++ {
		settings, err := call(onAPI(ctx, "read the drain settings"), act.DrainSettings, activities.DrainSettingsInput{Cluster: o.cluster})
		if err != nil {
			return err
		}
		end := earlier(workflow.Now(ctx).Add(settings.Timeout), deadline)
		if !workflow.Now(ctx).Before(end) {
			return fmt.Errorf("drain node %s: no time left before the deadline %s", n.Name, deadline.UTC().Format(time.RFC3339))
		}
		o.mark(ctx, n.Name, DrainPhase, attempt, "")
		summary := fmt.Sprintf("drain %s (attempt %d of %d)", n.Name, attempt, attempts)
		_, err = call(until(ctx, end, summary), act.Drain, activities.DrainInput{NodeInput: o.on(n), Settings: settings.Drain, Deadline: end})
		if err == nil {
			o.mark(ctx, n.Name, Drained, attempt, "")
			return nil
		}
		again := workflow.Now(ctx).Add(settings.RetryInterval)
		if !worthAnother(err) || attempt >= attempts || !again.Before(deadline) {
			return err
		}
		o.mark(ctx, n.Name, WaitRetry, attempt, reason(err))
		if err := o.wait(ctx, n.Name, settings.RetryInterval, "wait before the next attempt to drain "+n.Name); err != nil {
			return err
		}
	}
}

// worthAnother reports whether a failed attempt may be followed by another one.
func worthAnother(err error) bool {
	kind := kindOf(err)
	return !temporal.IsCanceledError(err) && (kind == activities.TypeDrain || temporal.IsTimeoutError(err))
}

// evacuate cordons all nodes, so that no pod moves from one to another that goes
// too, and then drains them.
func (o *operation) evacuate(ctx workflow.Context, nodes []plan.Node, parallel, attempts int) error {
	o.step(ctx, "cordoning %s", strings.Join(plan.Names(nodes), ", "))
	if err := each(ctx, nodes, len(nodes), o.cordon); err != nil {
		return err
	}
	o.step(ctx, "draining %s", strings.Join(plan.Names(nodes), ", "))
	ctx, giveUp := workflow.WithCancel(ctx)
	return each(ctx, nodes, parallel, func(ctx workflow.Context, n plan.Node) error {
		err := o.gate(ctx)
		if err == nil {
			err = o.drain(ctx, n, attempts, o.status.Deadline)
		}
		if err != nil {
			o.mark(ctx, n.Name, Failed, 0, reason(err))
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
