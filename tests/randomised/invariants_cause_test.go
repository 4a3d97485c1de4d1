package randomised

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.temporal.io/sdk/temporal"

	"ebb/internal/operation"
)

// firstErrorReported looks at the operation and at each of its child workflows.
func firstErrorReported(r *operationRun) string {
	for workflow, err := range r.workflowErrors {
		first := r.firstFailure(workflow)
		if first == nil {
			continue
		}
		if err == nil {
			return fmt.Sprintf("%s ended well though %s %s had failed: %s", workflow, first.activity, first.node, first.text)
		}
		cause := r.cause(workflow)
		switch {
		case cause.Text == first.text:
		case first.activity == "Etcd" && strings.Contains(cause.Text, first.text): // one fault among others
		case r.endedBefore(workflow, first.at):
		case !cause.Cancelled && r.decidedBefore(workflow, cause, first.at):
		default:
			return fmt.Sprintf("%s: the first error was %s %s at %v: %q; reported is %+v", workflow, first.activity, first.node, first.at.Sub(epoch), first.text, cause)
		}
	}
	return ""
}

// noDrainGivenUpEarly: no workflow ends with an attempt to drain after which
// another was due.
func noDrainGivenUpEarly(r *operationRun) string {
	for _, f := range r.failures {
		if err := r.workflowErrors[f.workflow]; f.activity != "Drain" || err == nil || r.firstFailure(f.workflow) != nil || r.wasPaused {
			continue
		}
		if r.cause(f.workflow).Text == f.text {
			return fmt.Sprintf("%s ended with attempt %d to drain %s, and another was due: %s", f.workflow, f.call, f.node, f.text)
		}
	}
	return ""
}

// cause returns what a workflow has ended with: the operation or one of its children.
func (r *operationRun) cause(workflow string) operation.Cause {
	if workflow == r.operation {
		return r.outcome.Cause
	}
	o, _ := nodeOutcome(r.workflowErrors[workflow])
	return o.Cause
}

// firstFailure returns the first failure that a workflow has to end with; nil =
// there is none.
func (r *operationRun) firstFailure(workflow string) (first *failure) {
	for i, f := range r.failures {
		if f.workflow == workflow && (first == nil || f.at.Before(first.at)) && r.endsWorkflow(f) {
			first = &r.failures[i]
		}
	}
	return first
}

// endsWorkflow reports whether a workflow has to end with this failure. A cleanup
// never is its cause, preflight gathers faults, and a failed drain may be retried.
func (r *operationRun) endsWorkflow(f failure) bool {
	child, isChild := r.children[f.workflow]
	switch f.activity {
	case "Release", "Preflight", "DetachISO", "LeaveCordoned":
		return false
	case "Etcd": // before the first node it is one fault among others
		return isChild
	case "Uncordon":
		return isChild && r.succeeded[f.workflow+"CheckVersion"+f.node]
	case "Drain":
		attempts, deadline := r.m.settings.Scale.Attempts, r.status.Deadline
		if isChild {
			attempts, deadline = child.Retries+1, child.Deadline
		}
		var app *temporal.ApplicationError
		retryable := temporal.IsTimeoutError(f.err) || errors.As(f.err, &app) && app.Type() == operation.TypeDrain
		late := !r.wasPaused && !f.at.Add(r.m.s.drain.RetryInterval).Before(deadline)
		return !retryable || f.call >= attempts || late
	}
	return true
}

// endedBefore reports whether somebody had cancelled a workflow, or left its node
// out, when something else failed.
func (r *operationRun) endedBefore(workflow string, failed time.Time) bool {
	skipped := r.skippedAt[r.children[workflow].Node.Name]
	return !r.cancelledAt.IsZero() && !r.cancelledAt.After(failed) || !skipped.IsZero() && !skipped.After(failed)
}

// decidedBefore reports whether a workflow has ended by a decision of its own, and
// had reason to, when something failed in it. There are three: its deadline has
// passed, the control plane cannot do without the node, or a script has asked to be
// run again too often.
func (r *operationRun) decidedBefore(workflow string, cause operation.Cause, failed time.Time) bool {
	if slices.ContainsFunc(r.failures, func(f failure) bool { return f.workflow == workflow && f.text == cause.Text }) {
		return false
	}
	child, isChild := r.children[workflow]
	deadline, retries := r.status.Deadline, r.m.settings.Upgrade.Retries
	if !deadline.IsZero() && r.kind == operation.KindUpgrade {
		deadline = deadline.Add(-r.m.settings.Upgrade.NodeTimeout) // the time of a script
	}
	if isChild {
		deadline, retries = child.Deadline, child.Retries
	}
	if !deadline.IsZero() && (r.wasPaused || !deadline.After(failed)) {
		return true
	}
	asked := map[string]int{} // nodes whose script has asked to be run again
	for _, e := range r.m.events {
		switch {
		case e.operation != r.operation || e.at.After(failed):
		case isChild && e.detail == child.Node.Name && (e.kind == eventControlPlaneFaulty || e.kind == eventEtcdFaulty):
			return true
		case (e.kind == eventScriptEnded && isChild && e.node == child.Node.Name || e.kind == eventStaged && !isChild) && e.detail == fmt.Sprint(exitTryAgain):
			if asked[e.node]++; asked[e.node] > retries {
				return true
			}
		}
	}
	return false
}
