package operations

import (
	"testing"

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
	record, err := shared.Record(t.Context())
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
