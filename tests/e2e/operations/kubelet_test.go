package operations

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/clusterstate"
	"ebb/internal/config"
	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/internal/testbed"
	"ebb/internal/version"
)

// The new kubelet knows a flag no more: its node gets no pods, what the kubelet said is in
// the error, and the retry, which has nothing to drain there, goes through.
func TestKubeletThatDoesNotLive(t *testing.T) {
	bed := ownBed(t, 1, func(c *config.Cluster) { c.Upgrade.ReadyTimeout = config.Duration(5 * time.Second) })
	w1 := bed.Sandbox.Machine("w1")
	require.NoError(t, w1.KillKubelet(`"command failed" err="unknown flag: --pod-infra-container-image"`))

	end := upgradeTo(t, bed, "upgrade-dead", "1.37.2")

	require.Equal(t, ops.Failed, end.State, text(end))
	for _, part := range []string{"node w1", "step ready", "NodeStatusUnknown", "the last lines of its kubelet", "unknown flag: --pod-infra-container-image", "could not uncordon w1"} {
		require.Contains(t, end.Message, part)
	}
	require.NoError(t, bed.Verify(t.Context(), testbed.InState(clusterstate.Alert), testbed.OnlyCordoned("w1"), testbed.NodeAt("cp1", "1.37.2")))

	require.NoError(t, w1.KillKubelet(""))
	end = upgradeTo(t, bed, "upgrade-again", "1.37.2")

	require.Equal(t, ops.Done, end.State, text(end))
	require.NoError(t, bed.Verify(t.Context(), testbed.AllAt("1.37.2"), testbed.InState(clusterstate.Running), testbed.OnlyCordoned()))
	for _, event := range eventsIn(t, bed, "upgrade-again/w1") {
		require.NotEqual(t, "Drain", event.GetActivityTaskScheduledEventAttributes().GetActivityType().GetName())
	}
}

// upgradeTo is an upgrade from its start to its end.
func upgradeTo(t *testing.T, bed *testbed.Bed, id string, target version.Version) (end ops.Operation) {
	t.Helper()
	_, _, err := bed.Ops.Start(t.Context(), ops.Request{ID: id, Kind: operation.KindUpgrade, Cluster: testbed.ClusterName, Route: version.Route{Target: target}})
	require.NoError(t, err)
	require.NoError(t, bed.Ops.Watch(t.Context(), id, func(o ops.Operation) { end = o }))
	return end
}

// The oldest worker is down: by count it goes, and those that are left have to take pods.
func TestWorkerThatIsNotReadyGoesFirst(t *testing.T) {
	bed := ownBed(t, 3, func(c *config.Cluster) { c.Scale.MinWorkers = 2 })
	require.NoError(t, bed.Sandbox.Machine("w1").SetPower(t.Context(), false))

	end := scaleDown(t, bed, ops.Request{ID: "by-name", Nodes: []string{"w3"}})
	require.Equal(t, ops.Refused, end.State, text(end))
	require.Contains(t, end.Message, "leave 1 workers that take pods (1 are not Ready or cordoned), the minimum is 2")

	end = scaleDown(t, bed, ops.Request{ID: "by-count", Count: 1})
	require.Equal(t, ops.Done, end.State, text(end))
	require.JSONEq(t, `{"removed":["w1"],"destroyed":["w1"],"size":3}`, string(end.Result))
	require.NoError(t, bed.Verify(t.Context(), testbed.Removed("w1"), testbed.InState(clusterstate.Running), testbed.OnlyCordoned()))
}

// scaleDown is a scale-down from its start to its end.
func scaleDown(t *testing.T, bed *testbed.Bed, r ops.Request) (end ops.Operation) {
	t.Helper()
	r.Kind, r.Cluster = operation.KindScaleDown, testbed.ClusterName
	_, _, err := bed.Ops.Start(t.Context(), r)
	require.NoError(t, err)
	require.NoError(t, bed.Ops.Watch(t.Context(), r.ID, func(o ops.Operation) { end = o }))
	return end
}
