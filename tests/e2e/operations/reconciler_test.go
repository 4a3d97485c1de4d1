package operations

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"

	"ebb/internal/clusterstate"
	"ebb/internal/testbed"
	"ebb/internal/workers"
)

var triggerNow = client.ScheduleTriggerOptions{Overlap: enumspb.SCHEDULE_OVERLAP_POLICY_BUFFER_ONE}

func state(t *testing.T) clusterstate.State {
	t.Helper()
	record, err := shared.Record(context.WithoutCancel(t.Context())) // also when the test is over
	require.NoError(t, err)
	return record.State
}

func schedule(t *testing.T) *client.ScheduleDescription {
	t.Helper()
	d, err := shared.Client.ScheduleClient().GetHandle(t.Context(), workers.ReconcilerID(testbed.ClusterName)).Describe(t.Context())
	require.NoError(t, err)
	return d
}

func paused(t *testing.T) bool {
	t.Helper()
	return schedule(t).Schedule.State.Paused
}

// reconciliations are the last runs of the reconciler.
func reconciliations(t *testing.T) (runs []string) {
	t.Helper()
	for _, action := range schedule(t).Info.RecentActions {
		runs = append(runs, action.StartWorkflowResult.WorkflowID)
	}
	return runs
}

// reconcileOnce has the reconciler look at the cluster, and waits until it has.
func reconcileOnce(t *testing.T) {
	t.Helper()
	before := reconciliations(t)
	handle := shared.Client.ScheduleClient().GetHandle(t.Context(), workers.ReconcilerID(testbed.ClusterName))
	require.NoError(t, handle.Trigger(t.Context(), triggerNow))
	var fresh []string
	require.NoError(t, testbed.Poll(t.Context(), func() (bool, error) {
		fresh = slices.DeleteFunc(reconciliations(t), func(run string) bool { return slices.Contains(before, run) })
		return len(fresh) > 0, nil
	}))
	require.NoError(t, shared.Client.GetWorkflow(t.Context(), fresh[len(fresh)-1], "").Get(t.Context(), nil))
}

// alone keeps the worker's own reconciler, which looks at a cluster in Alert every
// full minute, away from a test that claims the Lease beside the engine.
func alone(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	handle := shared.Client.ScheduleClient().GetHandle(ctx, workers.ReconcilerID(testbed.ClusterName))
	require.NoError(t, testbed.Poll(ctx, func() (bool, error) { // until the worker has made it
		return handle.Pause(ctx, client.SchedulePauseOptions{Note: "a test has the cluster for itself"}) == nil, nil
	}))
	t.Cleanup(func() {
		require.NoError(t, handle.Unpause(context.Background(), client.ScheduleUnpauseOptions{Note: "the test is over"}))
	})
	require.NoError(t, testbed.Poll(ctx, func() (bool, error) {
		d, err := handle.Describe(ctx)
		return err == nil && len(d.Info.RunningWorkflows) == 0, err
	}))
}
