package operations

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/converter"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/config"
	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/internal/sandbox"
	"ebb/internal/testbed"
	"ebb/internal/version"
)

// No worker is there when a node's script ends, nor when its deadline passes.
func TestScriptThatEndedWhileNobodyFollowedItIsASuccess(t *testing.T) {
	bed := ownBed(t, 1, func(c *config.Cluster) { c.Upgrade.NodeTimeout = config.Duration(25 * time.Second) })
	require.NoError(t, bed.Sandbox.Machine("w1").SlowScript(5*time.Second))
	const id = "upgrade-late"
	_, _, err := bed.Ops.Start(t.Context(), ops.Request{ID: id, Kind: operation.KindUpgrade, Cluster: testbed.ClusterName, Route: version.Route{Target: "1.37.2"}})
	require.NoError(t, err)
	require.NoError(t, testbed.WaitForOperation(t.Context(), bed.Ops, id, func(o ops.Operation) bool {
		return phase(o, "w1") == operation.PhaseUpgrading && o.Live["w1"].Output != ""
	}))
	require.NoError(t, bed.KillWorkers())
	deadline := scriptDeadline(t, bed, id+"/w1")
	require.NoError(t, testbed.Poll(t.Context(), func() (bool, error) { return time.Now().After(deadline), nil }))

	_, err = bed.Worker(t.Context())
	require.NoError(t, err)
	var end ops.Operation
	require.NoError(t, bed.Ops.Watch(t.Context(), id, func(o ops.Operation) { end = o }))

	require.Equal(t, ops.Done, end.State, text(end))
	require.NoError(t, bed.Verify(t.Context(), testbed.AllAt("1.37.2"), testbed.InState(clusterstate.Running), testbed.OnlyCordoned(),
		testbed.Ran("w1", "kubeadm upgrade node", 1)))
}

// ownBed is a test bed of this test's own, with one control plane, so many workers, and a
// worker process. Tests that have one run beside each other, after all others.
func ownBed(t *testing.T, workers int, edit func(*config.Cluster)) *testbed.Bed {
	t.Helper()
	return ownBedOf(t, 1, workers, edit)
}

// ownBedOf is ownBed with so many control planes.
func ownBedOf(t *testing.T, controlPlanes, workers int, edit func(*config.Cluster)) *testbed.Bed {
	t.Helper()
	t.Parallel()
	bed, err := testbed.Start(t.Context(), testbed.Options{
		Dir: t.TempDir(), UIPort: -1, Sandbox: sandbox.Options{ControlPlanes: controlPlanes, Workers: workers}, Edit: edit,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, bed.Stop()) })
	_, err = bed.Worker(t.Context())
	require.NoError(t, err)
	return bed
}

// scriptDeadline is the deadline of the script that the workflow of a node runs now.
func scriptDeadline(t *testing.T, bed *testbed.Bed, workflowID string) time.Time {
	t.Helper()
	var in activities.ScriptInput
	for _, event := range eventsIn(t, bed, workflowID) {
		if scheduled := event.GetActivityTaskScheduledEventAttributes(); scheduled.GetActivityType().GetName() == "RunScript" {
			require.NoError(t, converter.GetDefaultDataConverter().FromPayloads(scheduled.GetInput(), &in))
		}
	}
	require.False(t, in.Deadline.IsZero())
	return in.Deadline
}
