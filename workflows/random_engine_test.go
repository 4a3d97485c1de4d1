package workflows

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	failurepb "go.temporal.io/api/failure/v1"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"
)

// engine stands between the workflows and the test environment and plays the
// part of Temporal's server and its workers for activities: attempts, retries by
// the policy that the workflow gave, all four timeouts, lost answers, dead
// workers and cancellation, in simulated time. The test environment's own way of
// running activities is not used: it runs them on the real clock and in parallel,
// so that a run could not be repeated, and answers a cancellation at once,
// whatever WaitForCancellation says.
//
// Each call is a coroutine of its workflow, so that nothing here is concurrent.
type engine struct {
	interceptor.WorkerInterceptorBase
	m         *model
	operation string
	calls     map[string]int // so many of each kind
	trace     []string
	failed    []callFailure
	did       map[string]bool   // calls that succeeded
	names     map[string]string // of the workflows that run: their ID and, from the second on, their hop
	children  map[string]UpgradeNodeInput
	ends      map[string]error     // of every workflow
	cancelled time.Time            // the operation; zero = it was not
	skipped   map[string]time.Time // when an operator gave up a node
	paused    bool                 // at some time, so that its deadline is not what it was
}

// callFailure is the final error of an activity or of a child workflow.
type callFailure struct {
	at       time.Time
	workflow string
	name     string // of the activity, or "child"
	node     string
	text     string // what has to be in the operation's error
	err      error
	nth      int // the call was the nth of its kind at its node
}

// InterceptWorkflow implements interceptor.WorkerInterceptor.
func (e *engine) InterceptWorkflow(_ workflow.Context, next interceptor.WorkflowInboundInterceptor) interceptor.WorkflowInboundInterceptor {
	return &inbound{interceptor.WorkflowInboundInterceptorBase{Next: next}, e}
}

type inbound struct {
	interceptor.WorkflowInboundInterceptorBase
	e *engine
}

// Init implements interceptor.WorkflowInboundInterceptor.
func (i *inbound) Init(out interceptor.WorkflowOutboundInterceptor) error {
	return i.Next.Init(&outbound{interceptor.WorkflowOutboundInterceptorBase{Next: out}, i.e})
}

type outbound struct {
	interceptor.WorkflowOutboundInterceptorBase
	e *engine
}

// ExecuteWorkflow implements interceptor.WorkflowInboundInterceptor: it writes
// down which nodes failed, and when.
func (i *inbound) ExecuteWorkflow(ctx workflow.Context, in *interceptor.ExecuteWorkflowInput) (any, error) {
	id := workflow.GetInfo(ctx).WorkflowExecution.ID
	child, isChild := in.Args[0].(UpgradeNodeInput)
	i.e.names[id] = id
	if child.Hop > 0 {
		i.e.names[id] = fmt.Sprintf("%s@%d", id, child.Hop)
		id = i.e.names[id]
	}
	if isChild {
		i.e.children[id] = child
	}
	i.e.note(workflow.Now(ctx), "%s begins", id)
	out, err := i.Next.ExecuteWorkflow(ctx, in)
	i.e.note(workflow.Now(ctx), "%s ends: %v", id, err)
	i.e.ends[id] = err
	if isChild && err != nil && !temporal.IsCanceledError(err) {
		i.e.failed = append(i.e.failed, callFailure{at: workflow.Now(ctx), workflow: child.Operation, name: "child", node: child.Node.Name, text: reason(err), err: err})
	}
	return out, err
}

func (e *engine) note(at time.Time, format string, args ...any) {
	e.trace = append(e.trace, fmt.Sprintf("%12s  ", at.Sub(epoch).Round(time.Millisecond))+fmt.Sprintf(format, args...))
}

// call is one activity that a workflow waits for.
type activityCall struct {
	workflow, name, node string
	nth                  int // the first call of this kind at this node is 1
	in                   any
	options              workflow.ActivityOptions
	expires              time.Time // by ScheduleToCloseTimeout
	asked                workflow.Context
	act                  modelled
	outage               time.Time // until when nothing answers
	latest               error     // of the attempt before
}

func (c *activityCall) String() string { return fmt.Sprintf("%s %s #%d", c.name, c.node, c.nth) }

// ExecuteActivity implements interceptor.WorkflowOutboundInterceptor.
func (o *outbound) ExecuteActivity(ctx workflow.Context, name string, args ...any) workflow.Future {
	future, answer := workflow.NewFuture(ctx)
	if ctx.Err() != nil { // the server never hears of it
		answer.SetError(ended(name, temporal.NewCanceledError()))
		return future
	}
	c := o.e.newCall(ctx, name, args[0])
	running, _ := workflow.NewDisconnectedContext(ctx)
	workflow.Go(running, func(ctx workflow.Context) {
		out, err := o.e.execute(ctx, c)
		if err != nil {
			answer.SetError(ended(name, err))
			return
		}
		answer.SetValue(encoded(out))
	})
	return future
}

func (e *engine) newCall(ctx workflow.Context, name string, in any) *activityCall {
	c := &activityCall{
		workflow: e.names[workflow.GetInfo(ctx).WorkflowExecution.ID], name: name, node: nodeOf(in), in: decoded(in),
		options: workflow.GetActivityOptions(ctx), asked: ctx, act: modelledActivities[name],
	}
	if c.act == nil {
		panic(fmt.Sprintf("activity %s has no model: add it to modelledActivities in random_activities_test.go", name))
	}
	key := c.workflow + c.name + c.node
	e.calls[key]++
	c.nth, c.expires = e.calls[key], epoch.Add(never)
	if all := c.options.ScheduleToCloseTimeout; all > 0 {
		c.expires = workflow.Now(ctx).Add(all)
	}
	return c
}

// nodeOf is the node that an activity is about, so that traces and draws name it.
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

// execute makes attempts until one succeeds, fails for good, or the time is over.
func (e *engine) execute(ctx workflow.Context, c *activityCall) (any, error) {
	for attempt := 1; ; attempt++ {
		out, err := e.attempt(ctx, c, attempt)
		e.note(workflow.Now(ctx), "%s.%d %s", c, attempt, outcomeText(err))
		if err == nil {
			e.did[c.workflow+c.name+c.node] = true
		}
		if err == nil || !e.again(ctx, c, attempt, &err) {
			if err != nil && !temporal.IsCanceledError(err) {
				e.failed = append(e.failed, callFailure{
					at: workflow.Now(ctx), workflow: c.workflow, name: c.name, node: c.node, text: reason(ended(c.name, err)), err: err, nth: c.nth,
				})
			}
			return out, err
		}
		c.latest = err
	}
}

func outcomeText(err error) string {
	if err == nil {
		return "ok"
	}
	return err.Error()
}

// again waits until the next attempt, if there is to be one. It does what the
// server does: an activity whose cancellation was asked for is not retried, and
// one that waits for its retry is cancelled at once.
func (e *engine) again(ctx workflow.Context, c *activityCall, attempt int, err *error) bool {
	var app *temporal.ApplicationError
	if errors.As(*err, &app) && app.NonRetryable() || temporal.IsCanceledError(*err) || c.asked.Err() != nil {
		return false
	}
	policy, now := c.options.RetryPolicy, workflow.Now(ctx)
	pause := policy.InitialInterval
	for i := 1; i < attempt && pause < policy.MaximumInterval; i++ {
		pause = time.Duration(float64(pause) * policy.BackoffCoefficient)
	}
	pause = min(pause, policy.MaximumInterval)
	if c.outage.After(now.Add(pause)) { // all attempts until then fail alike: pass over them
		pause = min(c.outage.Sub(now), max(c.expires.Sub(now)-time.Nanosecond, pause))
	}
	if !now.Add(pause).Before(c.expires) {
		var timeout *temporal.TimeoutError
		if errors.As(*err, &timeout) {
			*err = temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE, timeout.Unwrap())
		}
		return false
	}
	if e.pass(ctx, c.asked, now.Add(pause)) {
		*err = temporal.NewCanceledError()
		return false
	}
	return true
}

// pass waits until a moment, or until the cancellation of asked, and says which it was.
func (e *engine) pass(ctx, asked workflow.Context, until time.Time) (cancelled bool) {
	timing, stop := workflow.WithCancel(ctx)
	defer stop()
	wait := until.Sub(workflow.Now(ctx))
	if wait <= 0 {
		e.m.advance(workflow.Now(ctx))
		return false
	}
	selector := workflow.NewSelector(ctx).AddFuture(workflow.NewTimer(timing, wait), func(workflow.Future) {})
	if asked != nil && asked.Err() == nil {
		selector.AddReceive(asked.Done(), func(workflow.ReceiveChannel, bool) { cancelled = true })
	}
	selector.Select(ctx)
	e.m.advance(workflow.Now(ctx))
	return cancelled
}

// ended is an activity's error as a workflow gets it from the server.
func ended(name string, err error) error {
	convert := temporal.GetDefaultFailureConverter()
	return convert.FailureToError(&failurepb.Failure{
		Message: "activity error", Cause: convert.ErrorToFailure(err),
		FailureInfo: &failurepb.Failure_ActivityFailureInfo{ActivityFailureInfo: &failurepb.ActivityFailureInfo{
			ActivityType: &commonpb.ActivityType{Name: name}, ActivityId: "1",
		}},
	})
}

// encoded and decoded take values through the data converter, as on their way to
// and from a worker.
func encoded(value any) *commonpb.Payloads {
	payloads, err := converter.GetDefaultDataConverter().ToPayloads(value)
	if err != nil {
		panic(err)
	}
	return payloads
}

func decoded(in any) any {
	out := reflect.New(reflect.TypeOf(in))
	if err := converter.GetDefaultDataConverter().FromPayloads(encoded(in), out.Interface()); err != nil {
		panic(err)
	}
	return out.Elem().Interface()
}
