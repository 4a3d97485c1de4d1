package workflows

import (
	"context"
	"errors"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"ebb/activities"
	"ebb/internal/operation"
	"ebb/internal/policy"
)

// act names the activities for their methods; in workflow code it is never set.
var act *activities.Activities

// How long an activity may take, by what it does.
const (
	apiCallTimeout  = 30 * time.Second // one request or a few to an API server
	apiRetryFor     = 10 * time.Minute // an API server may be away this long before an operation gives up
	infraTimeout    = 3 * time.Minute  // a call to an infrastructure, with the job that it starts
	infraRetryFor   = 30 * time.Minute // an infrastructure may be away this long
	isoRetryFor     = 5 * time.Minute  // an ISO is no reason to keep an operation for longer
	nodeCallTimeout = time.Minute      // one short command over SSH
	nodeRetryFor    = 2 * time.Minute  // a node may be unreachable this long
	detachedFor     = 24 * time.Hour   // putting things back is tried for this long
	heartbeatLost   = 10 * time.Second // a worker that is silent for this long is dead
	longMargin      = 2 * time.Minute  // for an activity with a deadline of its own to wind up after it
)

var retry = &temporal.RetryPolicy{InitialInterval: 250 * time.Millisecond, BackoffCoefficient: 2, MaximumInterval: 10 * time.Second}

// call executes an activity, with its input and output checked by the compiler. One of
// which nothing was heard in its whole time may have done its work, or never have been
// taken up, while no worker or no engine was there: it is executed once more.
func call[I, O any](ctx workflow.Context, activity func(context.Context, I) (O, error), in I) (O, error) {
	out, err := execute(ctx, activity, in)
	if unheard(err) && ctx.Err() == nil && workflow.GetVersion(ctx, "look-once-more", workflow.DefaultVersion, 1) == 1 {
		return execute(onceMore(ctx), activity, in)
	}
	return out, err
}

// execute is call for what cannot be done once its time is over, and is not looked at again.
func execute[I, O any](ctx workflow.Context, activity func(context.Context, I) (O, error), in I) (out O, err error) {
	err = workflow.ExecuteActivity(ctx, activity, in).Get(ctx, &out)
	return out, err
}

// unheard reports whether the whole time of an activity is over without an answer. (One
// whose last attempt has failed has that error.)
func unheard(err error) bool {
	var timeout *temporal.TimeoutError
	return errors.As(err, &timeout) &&
		(timeout.TimeoutType() == enumspb.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE || timeout.TimeoutType() == enumspb.TIMEOUT_TYPE_SCHEDULE_TO_START)
}

// SecondLook is the end of the summary of an activity that is executed once more.
const SecondLook = ", once more"

// onceMore gives an activity the time of one attempt, and a margin for a worker to come.
func onceMore(ctx workflow.Context) workflow.Context {
	o := workflow.GetActivityOptions(ctx)
	o.Summary += SecondLook
	o.ScheduleToCloseTimeout = min(o.ScheduleToCloseTimeout, o.StartToCloseTimeout+longMargin)
	return workflow.WithActivityOptions(ctx, o)
}

// onAPI is for activities that talk to the managed cluster's API server.
func onAPI(ctx workflow.Context, summary string) workflow.Context {
	return with(ctx, summary, apiCallTimeout, apiRetryFor, 0)
}

// overSSH is for short commands on a node.
func overSSH(ctx workflow.Context, summary string) workflow.Context {
	return with(ctx, summary, nodeCallTimeout, nodeRetryFor, 0)
}

// until is for long activities that end by themselves at a deadline and heartbeat until then.
func until(ctx workflow.Context, deadline time.Time, summary string) workflow.Context {
	left := max(deadline.Sub(workflow.Now(ctx)), 0) + longMargin
	return with(ctx, summary, left, left, heartbeatLost)
}

func with(ctx workflow.Context, summary string, once, all, heartbeat time.Duration) workflow.Context {
	return workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		Summary: summary, StartToCloseTimeout: once, ScheduleToCloseTimeout: all, HeartbeatTimeout: heartbeat,
		RetryPolicy: retry, WaitForCancellation: true,
	})
}

// each calls do for every item, in order, at most parallel at a time. After a
// failure nothing more is started, what runs is waited for, and the first error
// is returned.
func each[T any](ctx workflow.Context, items []T, parallel int, do func(workflow.Context, T) error) error {
	var (
		first error
		slots = workflow.NewSemaphore(ctx, int64(max(parallel, 1)))
		group = workflow.NewWaitGroup(ctx)
	)
	waiting, _ := workflow.NewDisconnectedContext(ctx) // a cancellation ends the work, not the wait for it
	for _, item := range items {
		if err := slots.Acquire(waiting, 1); err != nil {
			return err
		}
		if first == nil && ctx.Err() != nil {
			first = ctx.Err()
		}
		if first != nil {
			break
		}
		group.Add(1)
		workflow.Go(ctx, func(ctx workflow.Context) {
			defer group.Done()
			defer slots.Release(1)
			if err := do(ctx, item); err != nil && first == nil {
				first = err
			}
		})
	}
	group.Wait(waiting)
	return first
}

// reason is the text of an error without what Temporal puts around it.
func reason(err error) string {
	var (
		app     *temporal.ApplicationError
		timeout *temporal.TimeoutError
		run     *temporal.ActivityError
	)
	switch {
	case temporal.IsCanceledError(err):
		return "cancelled"
	case errors.As(err, &app):
		return app.Message()
	case errors.As(err, &timeout) && errors.As(err, &run):
		return timeoutReason(run.ActivityType().GetName(), timeout)
	}
	return err.Error()
}

func timeoutReason(activity string, timeout *temporal.TimeoutError) string {
	text := activity + " did not end in time"
	if timeout.TimeoutType() == enumspb.TIMEOUT_TYPE_HEARTBEAT {
		text = activity + ": its worker is gone"
	}
	if cause := timeout.Unwrap(); cause != nil {
		text += ": " + reason(cause)
	}
	return text
}

// kindOf is the type of the activity error in the chain of err, or "".
func kindOf(err error) string {
	var app *temporal.ApplicationError
	if errors.As(err, &app) {
		return app.Type()
	}
	return ""
}

// causeOf returns an error as an outcome holds it.
func causeOf(err error) operation.Cause {
	if err == nil {
		return operation.Cause{}
	}
	c := operation.Cause{Type: kindOf(err), Text: reason(err), Cancelled: temporal.IsCanceledError(err)}
	var refusal *policy.Refusal
	if errors.As(err, &refusal) {
		c.Type, c.Faults = operation.TypeRefused, refusal.Faults
	}
	return c
}
