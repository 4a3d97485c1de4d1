package workflows

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/drain"
	"ebb/internal/operation"
	"ebb/internal/policy"
	"ebb/internal/version"
)

const op = "op-1"

// world is a test of one operation: its activities are mocked with exact
// arguments, and every call is written down in order.
type world struct {
	t   *testing.T
	env *testsuite.TestWorkflowEnvironment

	mu         sync.Mutex
	calls      []string
	objections []string                              // to the drains
	down       []string                              // nodes that were said to be down when the drains were checked
	attached   error                                 // of the wait until no volume is attached
	became     map[string]activities.LookAgainResult // of nodes, since they were chosen
}

func newWorld(t *testing.T) *world {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	w := &world{t: t, env: suite.NewTestWorkflowEnvironment()}
	w.env.SetStartWorkflowOptions(client.StartWorkflowOptions{ID: op})
	w.env.SetWorkerOptions(worker.Options{DeadlockDetectionTimeout: time.Minute}) // the machine may be busy
	w.env.RegisterWorkflow(UpgradeNode)
	w.env.RegisterWorkflow(StageNode)
	w.env.RegisterActivity(&activities.Activities{})
	w.env.SetTestTimeout(20 * time.Second)
	w.env.OnActivity(act.CheckDrains, mock.Anything, mock.Anything).Return(func(_ context.Context, in activities.CheckDrainsInput) (activities.CheckDrainsResult, error) {
		if len(w.objections) > 0 {
			w.note("check " + strings.Join(in.Nodes, " "))
		}
		w.down = in.Down
		return activities.CheckDrainsResult{Objections: w.objections}, nil
	}).Maybe()
	w.env.OnActivity(act.WaitDetached, mock.Anything, mock.Anything).Return(func(_ context.Context, in activities.WaitDetachedInput) (activities.WaitDetachedResult, error) {
		w.note("detach " + in.Node.Name)
		return activities.WaitDetachedResult{}, w.attached
	}).Maybe()
	w.env.OnActivity(act.LookAgain, mock.Anything, mock.Anything).Return(func(_ context.Context, in activities.MachineInput) (activities.LookAgainResult, error) {
		return w.became[in.Node.Name], nil
	}).Maybe()
	t.Cleanup(func() { w.env.AssertExpectations(t) })
	return w
}

func (w *world) note(call string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, call)
}

// called lists the calls whose name starts with one of the prefixes, in order.
func (w *world) called(prefixes ...string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var found []string
	for _, c := range w.calls {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(c, p) }) {
			found = append(found, c)
		}
	}
	return found
}

var (
	cp1 = policy.Node{Name: "cp1", UID: "u-cp1", Role: policy.FirstControlPlane, Version: "1.36.3", Ready: true, MachineID: "m-cp1"}
	cp2 = policy.Node{Name: "cp2", UID: "u-cp2", Role: policy.ControlPlane, Version: "1.36.3", Ready: true, MachineID: "m-cp2", Index: 1}
	w1  = policy.Node{Name: "w1", UID: "u-w1", Role: policy.Worker, Version: "1.36.3", Ready: true, MachineID: "m-w1", Index: 2}
	w2  = policy.Node{Name: "w2", UID: "u-w2", Role: policy.Worker, Version: "1.36.3", Ready: true, MachineID: "m-w2", Index: 3}
	w3  = policy.Node{Name: "w3", UID: "u-w3", Role: policy.Worker, Version: "1.36.3", Ready: true, MachineID: "m-w3", Index: 4}
)

func upgraded(n policy.Node) policy.Node {
	n.Version, n.Recorded = "1.37.2", "1.37.2"
	return n
}

var everyNode = []policy.Node{cp1, w1, w2, w3}

func settingsOf(nodes []policy.Node) activities.Survey {
	return activities.Survey{
		Nodes: nodes,
		Scale: activities.ScaleSettings{Timeout: time.Hour, Attempts: 3, MaxParallel: 1, MinWorkers: 1},
		Upgrade: activities.UpgradeSettings{
			Retries: 3, NodeTimeout: 30 * time.Minute, ReadyTimeout: 10 * time.Minute, SteadyInterval: time.Second, MaxUnavailable: 1,
		},
	}
}

// claims answers the claim and the survey.
func (w *world) claims(state, from clusterstate.State, target version.Version, survey activities.Survey) {
	in := activities.ClaimInput{Cluster: "prod", Operation: op, State: state, Route: version.Route{Target: target}}
	if state == clusterstate.Upgrading {
		in.Machines = &activities.MachineStates{}
	}
	w.env.OnActivity(act.Claim, mock.Anything, in).
		Return(activities.ClaimResult{From: from, Retry: from == clusterstate.Alert && target != "", Next: target}, nil).Once()
	w.env.OnActivity(act.Survey, mock.Anything, activities.SurveyInput{Cluster: "prod"}).Return(survey, nil).Once()
}

// releases expects the cluster to be given back once, in this state.
func (w *world) releases(state clusterstate.State) {
	w.env.OnActivity(act.Release, mock.Anything, mock.MatchedBy(func(in activities.ReleaseInput) bool {
		return in.Cluster == "prod" && in.Operation == op && in.State == state
	})).Return(func(_ context.Context, in activities.ReleaseInput) (activities.ReleaseResult, error) {
		w.note("release " + string(in.State))
		return activities.ReleaseResult{Held: true}, nil
	}).Once()
}

func (w *world) cordons(nodes ...policy.Node) {
	for _, n := range nodes {
		w.env.OnActivity(act.Cordon, mock.Anything, on(n)).Return(func(context.Context, activities.NodeInput) (activities.CordonResult, error) {
			w.note("cordon " + n.Name)
			return activities.CordonResult{Ours: true}, nil
		}).Once()
	}
}

func (w *world) uncordons(nodes ...policy.Node) {
	for _, n := range nodes {
		w.env.OnActivity(act.Uncordon, mock.Anything, on(n)).Return(func(context.Context, activities.NodeInput) (activities.UncordonResult, error) {
			w.note("uncordon " + n.Name)
			return activities.UncordonResult{Uncordoned: true}, nil
		}).Once()
	}
}

// drainSettings answers before every attempt.
func (w *world) drainSettings() {
	w.env.OnActivity(act.DrainSettings, mock.Anything, activities.DrainSettingsInput{Cluster: "prod"}).
		Return(activities.DrainSettings{Timeout: 5 * time.Minute, RetryInterval: 30 * time.Second, Drain: drain.Settings{Parallel: 16}}, nil)
}

func drains(n policy.Node) any {
	return mock.MatchedBy(func(in activities.DrainInput) bool { return in.NodeInput == on(n) && in.Settings.Parallel == 16 })
}

// drainsWell expects one attempt at each of these nodes.
func (w *world) drainsWell(nodes ...policy.Node) {
	for _, n := range nodes {
		w.env.OnActivity(act.Drain, mock.Anything, drains(n)).Return(func(context.Context, activities.DrainInput) (drain.Result, error) {
			w.note("drain " + n.Name)
			return drain.Result{DrainLeft: operation.DrainLeft{Node: n.Name}}, nil
		}).Once()
	}
}

// drainFails makes so many attempts at a node end with pods left.
func (w *world) drainFails(n policy.Node, times int) {
	w.env.OnActivity(act.Drain, mock.Anything, drains(n)).Return(func(context.Context, activities.DrainInput) (drain.Result, error) {
		w.note("drain " + n.Name)
		return drain.Result{}, fails(operation.TypeDrain, "drain node "+n.Name+": default/web-1 blocked by budget default/web")
	}).Times(times)
}

// cancelDuring cancels the operation while the mocked activity runs, which ends as cancelled.
func (w *world) cancelDuring(name string) error {
	w.note(name)
	w.env.CancelWorkflow()
	return temporal.NewCanceledError()
}

func on(n policy.Node) activities.NodeInput {
	return activities.NodeInput{Cluster: "prod", Operation: op, Node: n.Name}
}

func machine(n policy.Node) activities.MachineInput {
	return activities.MachineInput{Cluster: "prod", Node: n}
}

func fails(kind, text string) error {
	return temporal.NewNonRetryableApplicationError(text, kind, nil)
}

// ended is the type and the text of the operation's error.
func (w *world) ended() (kind, text string) {
	w.t.Helper()
	require.True(w.t, w.env.IsWorkflowCompleted())
	err := w.env.GetWorkflowError()
	require.Error(w.t, err)
	var (
		app      *temporal.ApplicationError
		canceled *temporal.CanceledError
	)
	switch {
	case errors.As(err, &canceled):
		require.NoError(w.t, canceled.Details(&text))
		return "Canceled", text
	case errors.As(err, &app):
		return app.Type(), app.Message()
	}
	w.t.Fatalf("unexpected error %v", err)
	return "", ""
}

// status is what the operation says of itself.
func (w *world) status() operation.Status {
	w.t.Helper()
	value, err := w.env.QueryWorkflow(operation.QueryStatus)
	require.NoError(w.t, err)
	var status operation.Status
	require.NoError(w.t, value.Get(&status))
	return status
}

// steers sends an update and returns what it answered, or why it was refused.
// The answer is there once the workflow has run on.
func (w *world) steers(name string, args ...any) *answered {
	a := &answered{}
	w.env.UpdateWorkflow(name, "", a, args...)
	return a
}

// answered is the answer to an update.
type answered struct {
	text    string
	refused string
	failed  error
}

func (*answered) Accept() {}

func (a *answered) Reject(err error) { a.refused = err.Error() }

func (a *answered) Complete(answer any, err error) {
	a.text, _ = answer.(string)
	a.failed = err
}
