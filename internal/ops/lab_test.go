package ops

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"go.uber.org/zap"

	"ebb/internal/embedded"
	"ebb/internal/engine"
	"ebb/internal/operation"
	"ebb/internal/policy"
)

// lab is a real engine, and workflows that behave as their node names say.
type lab struct {
	t      *testing.T
	dir    string
	server *embedded.Server
	client client.Client
	ops    *Temporal
}

func newLab(t *testing.T) *lab {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: starts a Temporal server")
	}
	l := &lab{t: t, dir: t.TempDir()}
	l.start(0)
	t.Cleanup(l.stop)
	return l
}

func (l *lab) start(port int) {
	l.t.Helper()
	log := zap.NewNop()
	server, err := embedded.Start(l.t.Context(), embedded.Options{Dir: l.dir, Port: port, UIPort: -1, Log: log})
	require.NoError(l.t, err)
	l.server = server
	if l.client == nil {
		l.client, err = engine.Dial(l.t.Context(), log, engine.Options{Address: server.Address(), Namespace: server.Namespace()})
		require.NoError(l.t, err)
		l.t.Cleanup(l.client.Close)
		l.ops = NewTemporal(l.client, server.Namespace())
	}
}

func (l *lab) stop() { l.server.Stop() }

func (l *lab) worker() {
	l.t.Helper()
	w := worker.New(l.client, engine.TaskQueue, worker.Options{MaxHeartbeatThrottleInterval: 100 * time.Millisecond})
	w.RegisterWorkflowWithOptions(tinyDrain, workflow.RegisterOptions{Name: string(operation.KindDrain)})
	w.RegisterWorkflowWithOptions(tinyUpgrade, workflow.RegisterOptions{Name: string(operation.KindUpgrade)})
	w.RegisterWorkflowWithOptions(tinyNode, workflow.RegisterOptions{Name: "UpgradeNode"})
	w.RegisterWorkflowWithOptions(tinyListener, workflow.RegisterOptions{Name: "Listener"})
	w.RegisterActivityWithOptions(tinyEviction, activity.RegisterOptions{Name: operation.ActivityDrain})
	require.NoError(l.t, w.Start())
	l.t.Cleanup(w.Stop)
}

func (l *lab) run(r Request) {
	l.t.Helper()
	_, started, err := l.ops.Start(l.t.Context(), r)
	require.NoError(l.t, err)
	require.True(l.t, started)
}

// follow watches until the end, or until enough says so.
func (l *lab) follow(id string, enough func(Operation) bool) []Operation {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), 30*time.Second)
	defer cancel()
	var seen []Operation
	done := false
	err := l.ops.Watch(ctx, id, func(op Operation) {
		seen = append(seen, op)
		if enough != nil && enough(op) {
			done = true
			cancel()
		}
	})
	if !done {
		require.NoError(l.t, err, "%+v", seen)
		require.Nil(l.t, enough, "the end came first: %+v", seen[len(seen)-1])
	}
	return seen
}

func drainOf(id, how string) Request {
	return Request{ID: id, Kind: operation.KindDrain, Cluster: "prod", Nodes: []string{how}}
}

// tinyDrain ends as the name of its node says.
func tinyDrain(ctx workflow.Context, in operation.DrainInput) (operation.DrainResult, error) {
	how := in.Nodes[0]
	status := operation.Status{Kind: operation.KindDrain, Cluster: in.Cluster, Step: "draining " + how,
		Nodes: []operation.NodeStatus{{Node: how, Role: policy.Worker, Phase: operation.PhaseDraining, Attempt: 1}}}
	if err := workflow.SetQueryHandler(ctx, operation.QueryStatus, func() (operation.Status, error) { return status, nil }); err != nil {
		return operation.DrainResult{}, err
	}
	fails := func(kind string) error {
		return temporal.NewNonRetryableApplicationError("it was "+kind, kind, nil, status)
	}
	switch how {
	case "refused":
		return operation.DrainResult{}, fails(operation.TypeRefused)
	case "rolled-back":
		return operation.DrainResult{}, fails(operation.TypeRolledBack)
	case "failed":
		return operation.DrainResult{}, fails(operation.TypeFailed)
	case "naps":
		return operation.DrainResult{Drained: in.Nodes}, workflow.Sleep(ctx, 3*time.Second)
	case "hangs":
		if err := evict(ctx, how); err != nil {
			return operation.DrainResult{}, temporal.NewCanceledError("cancelled; uncordoned " + how)
		}
	}
	status.Step, status.Nodes[0].Phase = "drained "+how, operation.PhaseDrained
	return operation.DrainResult{Drained: in.Nodes}, nil
}

// pairTarget has tinyUpgrade work on two nodes at once, and after them on a third.
const pairTarget = "1.37.9"

func tinyPair(ctx workflow.Context) error {
	listen := func(node string) workflow.ChildWorkflowFuture {
		id := workflow.GetInfo(ctx).WorkflowExecution.ID + "/" + node
		return workflow.ExecuteChildWorkflow(workflow.WithChildOptions(ctx, workflow.ChildWorkflowOptions{WorkflowID: id}), "Listener")
	}
	first, second := listen("w1"), listen("w2")
	if err := first.Get(ctx, nil); err != nil {
		return err
	}
	if err := second.Get(ctx, nil); err != nil {
		return err
	}
	return listen("w3").Get(ctx, nil)
}

// tinyListener lets output come until it is told to stop, and counts retries.
func tinyListener(ctx workflow.Context) error {
	retries := 0
	if err := workflow.SetUpdateHandler(ctx, operation.UpdateRetryNow, func(workflow.Context, operation.NodeRequest) (string, error) {
		retries++
		return fmt.Sprintf("retried %d times", retries), nil
	}); err != nil {
		return err
	}
	workflow.GetSignalChannel(ctx, "stop").Receive(ctx, nil)
	return nil
}

// tinyUpgrade has one node under way in a child workflow.
func tinyUpgrade(ctx workflow.Context, in operation.UpgradeInput) (operation.UpgradeResult, error) {
	if in.Target == pairTarget {
		return operation.UpgradeResult{}, tinyPair(ctx)
	}
	status := operation.Status{Kind: operation.KindUpgrade, Cluster: in.Cluster, Target: in.Target, Step: "upgrading w1",
		Nodes: []operation.NodeStatus{{Node: "cp1", Role: policy.FirstControlPlane, Phase: operation.PhaseDone}, {Node: "w1", Role: policy.Worker, Phase: operation.PhaseUpgrading}}}
	if err := workflow.SetQueryHandler(ctx, operation.QueryStatus, func() (operation.Status, error) { return status, nil }); err != nil {
		return operation.UpgradeResult{}, err
	}
	ctx = workflow.WithChildOptions(ctx, workflow.ChildWorkflowOptions{WorkflowID: workflow.GetInfo(ctx).WorkflowExecution.ID + "/w1"})
	return operation.UpgradeResult{}, workflow.ExecuteChildWorkflow(ctx, "UpgradeNode", operation.UpgradeNodeInput{Node: policy.Node{Name: "w1"}}).Get(ctx, nil)
}

func tinyNode(ctx workflow.Context, in operation.UpgradeNodeInput) error {
	status := operation.Status{Nodes: []operation.NodeStatus{{Node: in.Node.Name, Role: policy.Worker, Phase: operation.PhaseDraining, Attempt: 2}}}
	if err := workflow.SetQueryHandler(ctx, operation.QueryStatus, func() (operation.Status, error) { return status, nil }); err != nil {
		return err
	}
	return evict(ctx, in.Node.Name)
}

func evict(ctx workflow.Context, node string) error {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: time.Minute, HeartbeatTimeout: 5 * time.Second, WaitForCancellation: true,
	})
	return workflow.ExecuteActivity(ctx, operation.ActivityDrain, node).Get(ctx, nil)
}

// tinyEviction reports a blocked pod until it is cancelled.
func tinyEviction(ctx context.Context, node string) error {
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		activity.RecordHeartbeat(ctx, operation.DrainProgress{Node: node, Total: 7, Evicted: 3, Gone: 2, Waiting: 5,
			Blocked: []operation.BlockedPod{{Pod: "default/web-1", Budget: "default/web", Reason: "0 disruptions allowed"}}})
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}
