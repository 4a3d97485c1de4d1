package randomised

import (
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"

	"ebb/internal/clusterstate"
	"ebb/internal/operation"
	"ebb/internal/version"
	"ebb/workflows"
)

// operationRun is one execution of an operation on the model, and how it ended.
type operationRun struct {
	*engine
	kind        operation.Kind
	before      clusterstate.Record // as it is found, without a dead holder
	nodesBefore map[string]modelNode

	claimed     bool            // it has had the cluster
	upgradingTo version.Version // of an upgrade: the hop, or the target, that it was last on its way to
	status      operation.Status

	// Of one that went through.
	scaleDown operation.ScaleDownResult
	upgrade   operation.UpgradeResult

	// Of one that did not.
	err       error
	cancelled bool   // it ended as cancelled
	errorType string // TypeRefused, TypeRolledBack or TypeFailed
	message   string
	outcome   operation.Outcome
}

// newOperationRun is an operation about to begin.
func newOperationRun(m *model, id string) *operationRun {
	m.operation, m.takenOver = id, ""
	r := &operationRun{engine: newEngine(m, id), kind: m.s.kind, nodesBefore: map[string]modelNode{}, before: m.record()}
	for name, n := range m.nodes {
		r.nodesBefore[name] = *n
	}
	if !m.running[r.before.Holder] {
		r.before = afterHolderDied(r.before)
	}
	m.running[id] = true
	return r
}

// execute runs the operation to its end and checks the invariants that hold then.
// nodes are those to drain or remove.
func (r *operationRun) execute(nodes []string) {
	env, s := r.environment(), r.m.s
	if !r.m.faultsOff {
		r.scheduleCancellation(env)
		r.scheduleUpdates(env)
	}
	switch r.kind {
	case operation.KindUpgrade:
		env.ExecuteWorkflow(workflows.Upgrade, operation.UpgradeInput{Cluster: "prod", Route: version.Route{Hops: s.hops, Target: s.target}})
	case operation.KindScaleDown:
		env.ExecuteWorkflow(workflows.ScaleDown, operation.ScaleDownInput{Cluster: "prod", Nodes: nodes, Count: s.count, Strict: s.strict})
	case operation.KindDrain:
		env.ExecuteWorkflow(workflows.Drain, operation.DrainInput{Cluster: "prod", Nodes: nodes})
	case operation.KindUncordon: // is not drawn
	}
	r.m.advanceClock(env.Now())
	r.readResult(env)
	for _, inv := range invariantsAfter {
		if problem := inv.check(r); problem != "" {
			r.m.violated(inv.name+" after "+r.operation, problem, inv.why)
		}
	}
}

func (r *operationRun) scheduleCancellation(env *testsuite.TestWorkflowEnvironment) {
	if r.m.s.cancelAt == 0 {
		return
	}
	env.RegisterDelayedCallback(func() {
		r.cancelledAt = env.Now()
		r.tracef(env.Now(), "CANCEL")
		env.CancelWorkflow()
	}, r.m.s.cancelAt)
}

// scheduleUpdates sends the drawn updates. Whether one makes sense when it comes is
// for the workflow to decide.
func (r *operationRun) scheduleUpdates(env *testsuite.TestWorkflowEnvironment) {
	for i, u := range r.m.s.updates {
		env.RegisterDelayedCallback(func() {
			var args []any
			if u.name == operation.UpdateSkipNode || u.name == operation.UpdateRetryNow {
				args = append(args, operation.NodeRequest{Node: u.node})
			}
			env.UpdateWorkflow(u.name, fmt.Sprint("update-", i), &updateCallbacks{r, env.Now(), u}, args...)
		}, u.at)
	}
}

// updateCallbacks keeps what became of an update.
type updateCallbacks struct {
	run *operationRun
	at  time.Time
	operatorUpdate
}

// Accept implements the test environment's callbacks.
func (u *updateCallbacks) Accept() {
	switch u.name {
	case operation.UpdateSkipNode:
		u.run.skippedAt[u.node] = u.at
	case operation.UpdatePause:
		u.run.wasPaused = true
	}
}

// Reject implements the test environment's callbacks.
func (u *updateCallbacks) Reject(err error) {
	u.run.tracef(u.at, "%s %s: %v", u.name, u.node, err)
}

// Complete implements the test environment's callbacks.
func (u *updateCallbacks) Complete(answer any, err error) {
	u.run.tracef(u.at, "%s %s: %v %v", u.name, u.node, answer, err)
}

// readResult reads how the workflow ended.
func (r *operationRun) readResult(env *testsuite.TestWorkflowEnvironment) {
	r.claimed, r.upgradingTo = r.m.hasEvent(eventClaimed, r.operation, ""), r.m.upgradingTo
	if !env.IsWorkflowCompleted() {
		r.err = errors.New("the workflow has not completed")
		return
	}
	if value, err := env.QueryWorkflow(operation.QueryStatus); err == nil {
		_ = value.Get(&r.status) // errorIsTyped looks at the status that comes with an error
	}
	switch r.err = env.GetWorkflowError(); {
	case r.err != nil:
		r.readError()
	case r.kind == operation.KindScaleDown:
		r.err = env.GetWorkflowResult(&r.scaleDown)
	case r.kind == operation.KindUpgrade:
		r.err = env.GetWorkflowResult(&r.upgrade)
	}
}

// readError reads the details of the workflow's error, as every client does. An
// error that has not got them is left without a type.
func (r *operationRun) readError() {
	var (
		app      *temporal.ApplicationError
		canceled *temporal.CanceledError
		err      error
	)
	switch {
	case errors.As(r.err, &canceled):
		r.cancelled = true
		err = canceled.Details(&r.message, &r.errorType, &r.status, &r.outcome)
	case errors.As(r.err, &app):
		r.errorType, r.message = app.Type(), app.Message()
		err = app.Details(&r.status, &r.outcome)
	}
	if err != nil {
		r.errorType, r.message = "", "its details cannot be read: "+err.Error()
	}
}

// end returns how the operation ended, in the words of TestRandomisedOperations.
func (r *operationRun) end() string {
	switch {
	case r.err == nil:
		return "done"
	case r.cancelled:
		return "cancelled " + r.errorType
	}
	return r.errorType
}
