package randomised

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	failurepb "go.temporal.io/api/failure/v1"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"ebb/workflows"
)

// activityCall is one activity that a workflow waits for, over all its attempts.
type activityCall struct {
	workflow, name, node string
	number               int // the first call of this kind at this node is 1
	in                   any
	options              workflow.ActivityOptions
	expiresAt            time.Time        // by ScheduleToCloseTimeout
	caller               workflow.Context // its cancellation is the activity's
	model                activityModel
	outageUntil          time.Time // all attempts until then fail
	lastError            error     // of the attempt before
}

func (c *activityCall) String() string { return fmt.Sprintf("%s %s #%d", c.name, c.node, c.number) }

// key names the calls of one activity at one node by one workflow.
func (c *activityCall) key() string { return c.workflow + c.name + c.node }

func (e *engine) newCall(ctx workflow.Context, name string, in any) *activityCall {
	c := &activityCall{
		workflow: e.workflowNames[workflow.GetInfo(ctx).WorkflowExecution.ID], name: name, node: nodeOf(in), in: roundTrip(in),
		options: workflow.GetActivityOptions(ctx), caller: ctx, model: activityModels[name],
	}
	if c.model == nil {
		panic(fmt.Sprintf("activity %s has no model: add it to activityModels in activities_test.go", name))
	}
	e.calls[c.key()]++
	c.number = e.calls[c.key()]
	if c.options.ScheduleToCloseTimeout == 0 {
		panic(fmt.Sprintf("activity %s is retried for ever", name))
	}
	c.expiresAt = workflow.Now(ctx).Add(c.options.ScheduleToCloseTimeout)
	return c
}

// nodeOf returns the node that an activity is about; "" = it is about none.
func nodeOf(in any) string {
	v := reflect.ValueOf(in)
	for _, field := range []string{"Node", "On", "NodeInput"} {
		f := v.FieldByName(field)
		switch {
		case !f.IsValid():
		case f.Kind() == reflect.String:
			return f.String()
		default:
			return f.FieldByName("Name").String()
		}
	}
	return ""
}

// runActivity makes attempts until one succeeds, fails for good, or time is up.
func (e *engine) runActivity(ctx workflow.Context, c *activityCall) (any, error) {
	for attempt := 1; ; attempt++ {
		out, err := e.runAttempt(ctx, c, attempt)
		if err == nil {
			e.tracef(workflow.Now(ctx), "%s.%d ok", c, attempt)
			e.succeeded[c.key()] = true
			return out, nil
		}
		e.tracef(workflow.Now(ctx), "%s.%d %v", c, attempt, err)
		again, err := e.retry(ctx, c, attempt, err)
		if !again {
			e.keepFailure(ctx, c, err)
			return nil, err
		}
		c.lastError = err
	}
}

func (e *engine) keepFailure(ctx workflow.Context, c *activityCall, err error) {
	if temporal.IsCanceledError(err) || c.looksOnceMore(err) {
		return
	}
	e.failures = append(e.failures, failure{
		at: workflow.Now(ctx), workflow: c.workflow, activity: c.name, node: c.node, call: c.number, err: err, text: errorText(activityError(c.name, err)),
	})
}

// looksOnceMore reports whether the workflow executes the activity a second time, as
// nothing was heard of it in its whole time.
func (c *activityCall) looksOnceMore(err error) bool {
	var timeout *temporal.TimeoutError
	return errors.As(err, &timeout) && timeout.TimeoutType() == enumspb.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE &&
		c.name != "Drain" && c.caller.Err() == nil && !strings.HasSuffix(c.options.Summary, workflows.SecondLook)
}

// retry waits until the next attempt and returns true, or returns false and the
// final error. It does what the server does: an activity whose cancellation was
// requested is not retried, and one that waits for its retry is cancelled at once.
func (e *engine) retry(ctx workflow.Context, c *activityCall, attempt int, err error) (bool, error) {
	var app *temporal.ApplicationError
	if errors.As(err, &app) && app.NonRetryable() || temporal.IsCanceledError(err) || c.caller.Err() != nil {
		return false, err
	}
	policy, now := c.options.RetryPolicy, workflow.Now(ctx)
	backoff := policy.InitialInterval
	for i := 1; i < attempt && backoff < policy.MaximumInterval; i++ {
		backoff = time.Duration(float64(backoff) * policy.BackoffCoefficient)
	}
	backoff = min(backoff, policy.MaximumInterval)
	if c.outageUntil.After(now.Add(backoff)) { // all attempts until then fail alike: pass over them
		backoff = min(c.outageUntil.Sub(now), max(c.expiresAt.Sub(now)-time.Nanosecond, backoff))
	}
	if !now.Add(backoff).Before(c.expiresAt) {
		var timeout *temporal.TimeoutError
		if errors.As(err, &timeout) {
			err = temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE, timeout.Unwrap())
		}
		return false, err
	}
	if e.waitUntil(ctx, c.caller, now.Add(backoff)) {
		return false, temporal.NewCanceledError()
	}
	return true, err
}

// waitUntil waits until a time, or until the caller is cancelled unless that is
// nil, and reports whether it was cancelled. The model's clock goes along.
func (e *engine) waitUntil(ctx, caller workflow.Context, until time.Time) (cancelled bool) {
	timerCtx, stop := workflow.WithCancel(ctx)
	defer stop()
	wait := until.Sub(workflow.Now(ctx))
	if wait <= 0 {
		e.m.advanceClock(workflow.Now(ctx))
		return false
	}
	selector := workflow.NewSelector(ctx).AddFuture(workflow.NewTimer(timerCtx, wait), func(workflow.Future) {})
	if caller != nil && caller.Err() == nil {
		selector.AddReceive(caller.Done(), func(workflow.ReceiveChannel, bool) { cancelled = true })
	}
	selector.Select(ctx)
	e.m.advanceClock(workflow.Now(ctx))
	return cancelled
}

// activityError returns an activity's error as a workflow gets it from the server.
func activityError(name string, err error) error {
	convert := temporal.GetDefaultFailureConverter()
	return convert.FailureToError(&failurepb.Failure{
		Message: "activity error", Cause: convert.ErrorToFailure(err),
		FailureInfo: &failurepb.Failure_ActivityFailureInfo{ActivityFailureInfo: &failurepb.ActivityFailureInfo{
			ActivityType: &commonpb.ActivityType{Name: name}, ActivityId: "1",
		}},
	})
}

// toPayloads encodes a value as on its way to or from a worker.
func toPayloads(value any) *commonpb.Payloads {
	payloads, err := converter.GetDefaultDataConverter().ToPayloads(value)
	if err != nil {
		panic(err)
	}
	return payloads
}

// roundTrip returns a value as it is after it was encoded and decoded.
func roundTrip(value any) any {
	out := reflect.New(reflect.TypeOf(value))
	if err := converter.GetDefaultDataConverter().FromPayloads(toPayloads(value), out.Interface()); err != nil {
		panic(err)
	}
	return out.Elem().Interface()
}
