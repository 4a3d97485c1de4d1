package randomised

import (
	"fmt"
	"log/slog"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"ebb/activities"
	"ebb/internal/operation"
	"ebb/workflows"
)

// engine stands between the workflows and the test environment and plays the
// part of Temporal's server and its workers for activities: attempts, retries by
// the policy that the workflow gave, all four timeouts, lost responses, dead
// workers and cancellation, in simulated time. The test environment's own way of
// running activities is not used: it runs them on the real clock and in parallel,
// so that a run could not be repeated, and it answers a cancellation at once,
// whatever WaitForCancellation says.
//
// Each call is a coroutine of its workflow, so that nothing here is concurrent.
type engine struct {
	interceptor.WorkerInterceptorBase
	m         *model
	operation string
	trace     []string

	calls     map[string]int  // how many there were, by workflow, activity and node
	succeeded map[string]bool // calls that did, by the same key
	failures  []failure

	workflowNames  map[string]string                     // by workflow ID; from the second hop on a child's name has the hop as well
	children       map[string]operation.UpgradeNodeInput // by workflow name
	workflowErrors map[string]error                      // of the workflows that have ended, by their name
	childSkipped   map[string]bool                       // children that found their node done already

	cancelledAt time.Time            // zero = nobody cancelled the operation
	skippedAt   map[string]time.Time // nodes that an operator left out
	wasPaused   bool                 // so that the deadline has moved
}

// failure is the final error of an activity or of a child workflow.
type failure struct {
	at       time.Time
	workflow string
	activity string // or childWorkflow
	node     string
	call     int // 1 is the first call of its kind at its node
	err      error
	text     string // as an outcome has to report it
}

// childWorkflow stands for the name of an activity in failures of child workflows.
const childWorkflow = "child"

func newEngine(m *model, id string) *engine {
	return &engine{
		m: m, operation: id, calls: map[string]int{}, succeeded: map[string]bool{},
		children: map[string]operation.UpgradeNodeInput{}, workflowErrors: map[string]error{}, childSkipped: map[string]bool{}, workflowNames: map[string]string{}, skippedAt: map[string]time.Time{},
	}
}

// environment returns the test environment for a workflow whose ID is the engine's
// operation.
func (e *engine) environment() *testsuite.TestWorkflowEnvironment {
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	env.SetStartWorkflowOptions(client.StartWorkflowOptions{ID: e.operation})
	env.SetStartTime(e.m.clock)
	env.SetTestTimeout(time.Minute)
	env.SetWorkerOptions(worker.Options{Interceptors: []interceptor.WorkerInterceptor{e}, DeadlockDetectionTimeout: time.Minute})
	env.RegisterWorkflow(workflows.UpgradeNode)
	env.RegisterWorkflow(workflows.StageNode)
	env.RegisterActivity(&activities.Activities{})
	return env
}

// activityFailed reports whether an activity at a node failed for good, or was not
// retried any more.
func (e *engine) activityFailed(name, node string) bool {
	for _, f := range e.failures {
		if f.activity == name && f.node == node {
			return true
		}
	}
	return false
}

// tracef writes a line to the trace that is printed when an invariant is violated.
func (e *engine) tracef(at time.Time, format string, args ...any) {
	e.trace = append(e.trace, fmt.Sprintf("%12s  ", at.Sub(epoch).Round(time.Millisecond))+fmt.Sprintf(format, args...))
}

// InterceptWorkflow implements interceptor.WorkerInterceptor.
func (e *engine) InterceptWorkflow(_ workflow.Context, next interceptor.WorkflowInboundInterceptor) interceptor.WorkflowInboundInterceptor {
	return &inbound{interceptor.WorkflowInboundInterceptorBase{Next: next}, e}
}

type inbound struct {
	interceptor.WorkflowInboundInterceptorBase
	engine *engine
}

// Init implements interceptor.WorkflowInboundInterceptor.
func (i *inbound) Init(out interceptor.WorkflowOutboundInterceptor) error {
	return i.Next.Init(&outbound{interceptor.WorkflowOutboundInterceptorBase{Next: out}, i.engine})
}

// ExecuteWorkflow implements interceptor.WorkflowInboundInterceptor: it keeps how
// each workflow ends.
func (i *inbound) ExecuteWorkflow(ctx workflow.Context, in *interceptor.ExecuteWorkflowInput) (any, error) {
	e, id := i.engine, workflow.GetInfo(ctx).WorkflowExecution.ID
	if stage, ok := in.Args[0].(operation.StageNodeInput); ok { // what goes wrong in it is the operation's own
		e.workflowNames[id] = stage.Operation
		return i.Next.ExecuteWorkflow(ctx, in)
	}
	child, isChild := in.Args[0].(operation.UpgradeNodeInput)
	name := id
	if child.Hop > 0 {
		name = fmt.Sprintf("%s@%d", id, child.Hop)
	}
	e.workflowNames[id] = name
	if isChild {
		e.children[name] = child
	}
	e.tracef(workflow.Now(ctx), "%s begins", name)
	out, err := i.Next.ExecuteWorkflow(ctx, in)
	e.tracef(workflow.Now(ctx), "%s ends: %v", name, err)
	e.workflowErrors[name] = received(err)
	if result, ok := out.(operation.UpgradeNodeResult); ok {
		e.childSkipped[name] = result.Skipped
	}
	if isChild && err != nil && !temporal.IsCanceledError(err) {
		e.failures = append(e.failures, failure{
			at: workflow.Now(ctx), workflow: child.Operation, activity: childWorkflow, node: child.Node.Name, text: errorText(err), err: err,
		})
	}
	return out, err
}

type outbound struct {
	interceptor.WorkflowOutboundInterceptorBase
	engine *engine
}

// ExecuteActivity implements interceptor.WorkflowOutboundInterceptor.
func (o *outbound) ExecuteActivity(ctx workflow.Context, name string, args ...any) workflow.Future {
	future, result := workflow.NewFuture(ctx)
	if ctx.Err() != nil { // the server never hears of it
		result.SetError(activityError(name, temporal.NewCanceledError()))
		return future
	}
	c := o.engine.newCall(ctx, name, args[0])
	running, _ := workflow.NewDisconnectedContext(ctx)
	workflow.Go(running, func(ctx workflow.Context) {
		out, err := o.engine.runActivity(ctx, c)
		if err != nil {
			result.SetError(activityError(name, err))
			return
		}
		result.SetValue(toPayloads(out))
	})
	return future
}
