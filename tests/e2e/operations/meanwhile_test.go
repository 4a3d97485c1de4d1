package operations

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/clusterstate"
	"ebb/internal/config"
	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/internal/sandbox"
	"ebb/internal/testbed"
	"ebb/internal/version"
)

// While the drain of w1 waits, w2 leaves the cluster and w3 is registered again: neither
// stops the upgrade of the others, and a node that is new has to be upgraded in the end.
func TestNodesThatChangeDuringAnUpgrade(t *testing.T) {
	bed, allow := heldAtW1(t, 3, ops.Request{ID: "upgrade", Kind: operation.KindUpgrade, Route: version.Route{Target: "1.37.2"}})
	unregister(t, bed, "w2")
	registerAgain(t, bed, "w3")
	allow()

	end := watch(t, bed, "upgrade")

	require.Equal(t, ops.Failed, end.State, text(end))
	require.Contains(t, end.Message, "node w3 is at 1.36.3: it joined during the upgrade")
	require.Equal(t, operation.PhaseDone, phase(end, "w1"))
	require.Equal(t, operation.PhaseSkipped, phase(end, "w2"))
	require.Equal(t, operation.PhaseSkipped, phase(end, "w3"))
	require.Contains(t, text(end), "it is gone from the cluster")
	require.NoError(t, bed.Verify(t.Context(), testbed.InState(clusterstate.Alert), testbed.OnlyCordoned(), testbed.NodeAt("w1", "1.37.2"),
		testbed.Ran("w2", "kubeadm upgrade", 0), testbed.Ran("w3", "kubeadm upgrade", 0)))

	end = upgradeTo(t, bed, "again", "1.37.2")
	require.Equal(t, ops.Done, end.State, text(end))
	require.NoError(t, bed.Verify(t.Context(), testbed.InState(clusterstate.Running), testbed.AllAt("1.37.2"),
		testbed.Ran("w1", "kubeadm upgrade node", 1), testbed.Ran("w3", "kubeadm upgrade node", 1)))
}

// A node that has been registered again since it was chosen is another one: it stays, and so
// does its machine. One that has left by itself is done, machine included.
func TestNodesThatChangeDuringAScaleDown(t *testing.T) {
	bed, allow := heldAtW1(t, 4, ops.Request{ID: "leave", Kind: operation.KindScaleDown, Nodes: []string{"w1", "w2", "w3"}})
	drained(t, bed, "leave", "w2", "w3")
	registerAgain(t, bed, "w2")
	unregister(t, bed, "w3")
	allow()

	end := watch(t, bed, "leave")

	require.Equal(t, ops.Done, end.State, text(end))
	require.Equal(t, operation.PhaseSkipped, phase(end, "w2"))
	require.Contains(t, text(end), "another node has its name now, which is left alone")
	var result operation.ScaleDownResult
	require.NoError(t, json.Unmarshal(end.Result, &result))
	require.Equal(t, []string{"w1", "w3"}, result.Destroyed)
	require.NoError(t, bed.Verify(t.Context(), testbed.Removed("w1", "w3"), testbed.InState(clusterstate.Running), testbed.OnlyCordoned()))
	require.False(t, bed.Sandbox.Machine("w2").Destroyed())
}

// A node that was down is not drained. When its machine is up again by the time it would be
// destroyed, it is not.
func TestMachineThatComesBackDuringAScaleDown(t *testing.T) {
	bed, allow := heldAtW1(t, 3, ops.Request{ID: "leave", Kind: operation.KindScaleDown, Nodes: []string{"w1", "w2"}}, "w2")
	require.NoError(t, bed.Sandbox.Machine("w2").SetPower(t.Context(), true))
	allow()

	end := watch(t, bed, "leave")

	require.Equal(t, ops.Failed, end.State, text(end))
	require.Contains(t, end.Message, "the machine of w2 was down and is up again, and the node was not drained: start the scale-down again")
	require.False(t, bed.Sandbox.Machine("w2").Destroyed())
	require.NoError(t, bed.Verify(t.Context(), testbed.Removed("w1"), testbed.InState(clusterstate.Alert), testbed.OnlyCordoned()))
}

// heldAtW1 starts an operation on a bed of its own, some of whose nodes are down, and returns
// when only a budget that allows nothing keeps it, at w1. allow lets it go on.
func heldAtW1(t *testing.T, workers int, r ops.Request, down ...string) (bed *testbed.Bed, allow func()) {
	t.Helper()
	bed = ownBed(t, workers, func(c *config.Cluster) { c.Drain.Timeout, c.Scale.MaxParallel = config.Duration(time.Minute), workers })
	require.NoError(t, bed.Sandbox.Deploy(t.Context(), sandbox.Workload{Name: "web", Replicas: 1, Nodes: []string{"w1"}, Budget: &sandbox.Budget{MaxUnavailable: "0"}}))
	for _, name := range down {
		require.NoError(t, bed.Sandbox.Machine(name).SetPower(t.Context(), false))
	}
	r.Cluster = testbed.ClusterName
	_, _, err := bed.Ops.Start(t.Context(), r)
	require.NoError(t, err)
	require.NoError(t, testbed.WaitForOperation(t.Context(), bed.Ops, r.ID, idle))
	return bed, func() {
		require.NoError(t, bed.Sandbox.SetBudget(t.Context(), "web", sandbox.Budget{MaxUnavailable: "1"}))
	}
}

func watch(t *testing.T, bed *testbed.Bed, id string) (end ops.Operation) {
	t.Helper()
	require.NoError(t, bed.Ops.Watch(t.Context(), id, func(o ops.Operation) { end = o }))
	return end
}

// drained waits until nodes have been drained.
func drained(t *testing.T, bed *testbed.Bed, id string, names ...string) {
	t.Helper()
	require.NoError(t, testbed.WaitForOperation(t.Context(), bed.Ops, id, func(o ops.Operation) bool {
		for _, name := range names {
			if phase(o, name) != operation.PhaseDrained {
				return false
			}
		}
		return true
	}))
}

func unregister(t *testing.T, bed *testbed.Bed, name string) *core.Node {
	t.Helper()
	api := bed.Sandbox.Client().CoreV1().Nodes()
	node, err := api.Get(t.Context(), name, meta.GetOptions{})
	require.NoError(t, err)
	require.NoError(t, api.Delete(t.Context(), name, meta.DeleteOptions{}))
	return node
}

// registerAgain is what a kubelet does whose Node object somebody has deleted.
func registerAgain(t *testing.T, bed *testbed.Bed, name string) {
	t.Helper()
	node := unregister(t, bed, name)
	node.ObjectMeta = meta.ObjectMeta{Name: name, Labels: node.Labels}
	node.Spec.Unschedulable, node.Spec.Taints = false, nil
	_, err := bed.Sandbox.Client().CoreV1().Nodes().Create(t.Context(), node, meta.CreateOptions{})
	require.NoError(t, err)
}
