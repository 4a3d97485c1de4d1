package workers

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/drain"
	"ebb/internal/engine"
	"ebb/internal/operation"
	"ebb/internal/policy"
	"ebb/internal/version"
)

// outputs is how many pieces of output each script sends.
const outputs = 5

// quickCluster has the activities of an upgrade that goes well.
type quickCluster struct {
	client client.Client

	mu    sync.Mutex
	nodes []policy.Node
}

func newQuickCluster(c client.Client, workers int) *quickCluster {
	q := &quickCluster{client: c, nodes: []policy.Node{{Name: "cp1", UID: "u-cp1", Role: policy.FirstControlPlane, Version: "1.36.3", Ready: true, MachineID: "m-cp1"}}}
	for i := range workers {
		q.nodes = append(q.nodes, policy.Node{Name: fmt.Sprintf("w%d", i), UID: fmt.Sprintf("u-%d", i), Role: policy.Worker, Version: "1.36.3", Ready: true, MachineID: fmt.Sprintf("m-%d", i)})
	}
	return q
}

func (q *quickCluster) Claim(_ context.Context, in activities.ClaimInput) (activities.ClaimResult, error) {
	return activities.ClaimResult{From: clusterstate.Running, Next: in.Stops()[0]}, nil
}

func (q *quickCluster) Survey(context.Context, activities.SurveyInput) (activities.Survey, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return activities.Survey{Nodes: slices.Clone(q.nodes), Upgrade: activities.UpgradeSettings{
		NodeTimeout: time.Hour, ReadyTimeout: time.Hour, SteadyInterval: time.Second, MaxUnavailable: 10,
	}}, nil
}

func (q *quickCluster) Node(_ context.Context, in activities.NodeInput) (activities.NodeResult, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.IndexFunc(q.nodes, func(n policy.Node) bool { return n.Name == in.Node })
	return activities.NodeResult{Node: q.nodes[i]}, nil
}

func (q *quickCluster) RecordVersion(_ context.Context, in activities.RecordVersionInput) (activities.RecordVersionResult, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.IndexFunc(q.nodes, func(n policy.Node) bool { return n.Name == in.Node })
	q.nodes[i].Version, q.nodes[i].Recorded = in.Version, in.Version
	return activities.RecordVersionResult{}, nil
}

// RunScript sends what the script prints to the workflow that runs it.
func (q *quickCluster) RunScript(ctx context.Context, in activities.ScriptInput) (activities.ScriptResult, error) {
	run := activity.GetInfo(ctx).WorkflowExecution
	for i := range outputs {
		if err := q.client.SignalWorkflow(ctx, run.ID, run.RunID, operation.SignalOutput, operation.Output{Node: in.Node, Phase: in.Phase, Offset: int64(i)}); err != nil {
			return activities.ScriptResult{}, err
		}
	}
	return activities.ScriptResult{}, nil
}

// register registers the activities that do nothing beside those above.
func (q *quickCluster) register(w worker.Worker) {
	w.RegisterActivity(q)
	for name, nothing := range map[string]any{
		"Release": func(context.Context, activities.ReleaseInput) (activities.ReleaseResult, error) {
			return activities.ReleaseResult{Held: true}, nil
		},
		"CheckDrains": quick[activities.CheckDrainsInput, activities.CheckDrainsResult], "Health": quick[activities.HealthInput, activities.HealthResult],
		"Etcd": quick[activities.EtcdInput, activities.EtcdResult], "Preflight": quick[activities.PreflightInput, activities.PreflightResult],
		"Cordon": quick[activities.NodeInput, activities.CordonResult], "Uncordon": quick[activities.NodeInput, activities.UncordonResult],
		"DrainSettings": func(context.Context, activities.DrainSettingsInput) (activities.DrainSettings, error) {
			return activities.DrainSettings{Timeout: time.Minute}, nil
		},
		"Drain": quick[activities.DrainInput, drain.Result], "CheckVersion": quick[activities.CheckVersionInput, activities.CheckVersionResult],
		"WaitReady": quick[activities.WaitReadyInput, activities.WaitReadyResult], "Advance": quick[activities.AdvanceInput, activities.AdvanceResult],
	} {
		w.RegisterActivityWithOptions(nothing, activity.RegisterOptions{Name: name})
	}
}

func quick[I, O any](context.Context, I) (out O, _ error) { return out, nil }

// perNode bounds the events that a node adds to the history of its upgrade in one hop (15 when
// measured): 1,000 nodes in two hops stay well below the 51,200 at which Temporal ends a workflow.
const perNode = 20

// The history of an upgrade does not grow with what scripts print, however much that is: each
// node has its own.
func TestHistoryOfAnUpgradeHoldsNoOutput(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a while")
	}
	c, _ := startEngine(t)
	length := map[int]int{}
	for _, workers := range []int{5, 20} {
		w := worker.New(c, engine.TaskQueue, worker.Options{MaxConcurrentActivityTaskPollers: pollers, MaxConcurrentWorkflowTaskPollers: pollers})
		RegisterWorkflows(w)
		newQuickCluster(c, workers).register(w)
		require.NoError(t, w.Start())
		id := fmt.Sprintf("upgrade-%d", workers)
		run, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: id, TaskQueue: engine.TaskQueue}, string(operation.KindUpgrade),
			operation.UpgradeInput{Cluster: "prod", Route: version.Route{Hops: []version.Version{"1.37.2"}, Target: "1.38.1"}})
		require.NoError(t, err)
		require.NoError(t, run.Get(t.Context(), nil))
		kinds := map[enumspb.EventType]int{}
		for events := c.GetWorkflowHistory(t.Context(), id, "", false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT); events.HasNext(); {
			event, err := events.Next()
			require.NoError(t, err)
			kinds[event.GetEventType()]++
			length[workers]++
		}
		require.Zero(t, kinds[enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED])
		w.Stop()
	}
	const hops, more = 2, 20 - 5
	require.Less(t, (length[20]-length[5])/(more*hops), perNode)
}
