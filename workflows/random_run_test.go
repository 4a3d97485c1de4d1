package workflows

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"

	"ebb/activities"
	"ebb/internal/clusterstate"
)

// prepare is an operation about to begin.
func prepare(m *model, operation string) *outcome {
	m.operation, m.takenOver = operation, ""
	o := &outcome{engine: newEngine(m, operation), kind: m.s.kind, nodes: map[string]modelNode{}, before: m.record()}
	for name, n := range m.nodes {
		o.nodes[name] = *n
	}
	if !m.alive[o.before.Holder] {
		o.before = withoutHolder(o.before)
	}
	m.alive[operation] = true
	return o
}

func newEngine(m *model, operation string) *engine {
	return &engine{
		m: m, operation: operation, calls: map[string]int{}, did: map[string]bool{},
		children: map[string]UpgradeNodeInput{}, ends: map[string]error{}, names: map[string]string{}, skipped: map[string]time.Time{},
	}
}

// environment is where a workflow runs that has the engine's operation as its ID.
func (e *engine) environment() *testsuite.TestWorkflowEnvironment {
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	env.SetStartWorkflowOptions(client.StartWorkflowOptions{ID: e.operation})
	env.SetStartTime(e.m.clock)
	env.SetTestTimeout(time.Minute)
	env.SetWorkerOptions(worker.Options{Interceptors: []interceptor.WorkerInterceptor{e}, DeadlockDetectionTimeout: time.Minute})
	env.RegisterWorkflow(UpgradeNode)
	env.RegisterActivity(&activities.Activities{})
	return env
}

// withoutHolder is how a cluster is found whose holder is over.
func withoutHolder(r clusterstate.Record) clusterstate.Record {
	switch {
	case r.Holder == "":
	case r.State == clusterstate.Draining:
		r.State = r.From
	default:
		r.State = clusterstate.Alert
	}
	return r
}

// play runs an operation to its end and asks the invariants about it.
func (o *outcome) play(nodes []string) {
	env := o.environment()
	if at := o.m.s.cancelAt; at > 0 && !o.m.calm {
		env.RegisterDelayedCallback(func() {
			o.cancelled = env.Now()
			o.note(env.Now(), "CANCEL")
			env.CancelWorkflow()
		}, at)
	}
	if !o.m.calm {
		o.steer(env)
	}
	switch o.kind {
	case KindUpgrade:
		env.ExecuteWorkflow(Upgrade, UpgradeInput{Cluster: "prod", Hops: o.m.s.hops, Target: o.m.s.target})
	case KindScaleDown:
		env.ExecuteWorkflow(ScaleDown, ScaleDownInput{Cluster: "prod", Nodes: nodes, Count: o.m.s.count, Strict: o.m.s.strict})
	case KindDrain:
		env.ExecuteWorkflow(Drain, DrainInput{Cluster: "prod", Nodes: nodes})
	}
	o.m.advance(env.Now())
	o.conclude(env)
	for _, inv := range afterwards {
		if problem := inv.check(o); problem != "" {
			o.m.violations = append(o.m.violations, fmt.Sprintf("%s after %s: %s (%s)", inv.name, o.operation, problem, inv.why))
		}
	}
}

// steer sends the drawn updates. Whether they make sense then is for the workflow.
func (o *outcome) steer(env *testsuite.TestWorkflowEnvironment) {
	for i, u := range o.m.s.steering {
		env.RegisterDelayedCallback(func() {
			var args []any
			if u.update == UpdateSkipNode || u.update == UpdateRetryNow {
				args = append(args, NodeRequest{Node: u.node})
			}
			env.UpdateWorkflow(u.update, fmt.Sprint("update-", i), &updated{o, env.Now(), u}, args...)
		}, u.at)
	}
}

// updated writes down what became of an update.
type updated struct {
	o  *outcome
	at time.Time
	steered
}

func (u *updated) Accept() {
	switch u.update {
	case UpdateSkipNode:
		u.o.skipped[u.node] = u.at
	case UpdatePause:
		u.o.paused = true
	}
}

func (u *updated) Reject(err error) { u.o.note(u.at, "%s %s: %v", u.update, u.node, err) }

func (u *updated) Complete(answer any, err error) {
	u.o.note(u.at, "%s %s: %v %v", u.update, u.node, answer, err)
}

// conclude reads how the workflow ended.
func (o *outcome) conclude(env *testsuite.TestWorkflowEnvironment) {
	o.held, o.aim = o.m.had(eClaimed, o.operation, ""), o.m.aim
	if value, err := env.QueryWorkflow(QueryStatus); err == nil {
		o.err = value.Get(&o.status)
	}
	var (
		app      *temporal.ApplicationError
		canceled *temporal.CanceledError
	)
	switch o.err = env.GetWorkflowError(); {
	case o.err == nil && o.kind == KindScaleDown:
		o.err = env.GetWorkflowResult(&o.scale)
	case o.err == nil && o.kind == KindUpgrade:
		o.err = env.GetWorkflowResult(&o.upgrade)
	case errors.As(o.err, &canceled):
		o.canceled = true
		if err := canceled.Details(&o.text, &o.endType); err != nil {
			o.endType = "cancelled without details: " + err.Error()
		}
	case errors.As(o.err, &app):
		o.endType, o.text = app.Type(), app.Message()
	}
	if !env.IsWorkflowCompleted() {
		o.endType = "not completed"
	}
}

func (o *outcome) end() string {
	switch {
	case o.err == nil:
		return "done"
	case o.canceled:
		return "cancelled " + o.endType
	}
	return o.endType
}
