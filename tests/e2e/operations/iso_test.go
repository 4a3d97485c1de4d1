package operations

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/clusterstate"
	"ebb/internal/config"
	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/internal/sandbox"
	"ebb/internal/testbed"
	"ebb/internal/version"
)

// drives writes down what the infrastructure did to the drives of machines.
type drives struct {
	mu    sync.Mutex
	calls []string
}

func (d *drives) done(node, action string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if strings.HasSuffix(action, "-iso") {
		d.calls = append(d.calls, action+" "+node)
	}
}

// of lists what was done to the drive of a node, in order.
func (d *drives) of(node string) (actions []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, call := range d.calls {
		if action, ok := strings.CutSuffix(call, " "+node); ok {
			actions = append(actions, action)
		}
	}
	return actions
}

// cksBed is a test bed whose nodes are laid out as CloudStack's Kubernetes service does,
// with the machines' drives watched.
func cksBed(t *testing.T, workers int) (*testbed.Bed, *drives) {
	t.Helper()
	bed, err := testbed.Start(t.Context(), testbed.Options{
		Dir: t.TempDir(), UIPort: -1, Sandbox: sandbox.Options{ControlPlanes: 1, Workers: workers, CKS: true},
		Edit: func(c *config.Cluster) { c.Upgrade.Script = config.ScriptCKSISO },
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, bed.Stop()) })
	seen := &drives{}
	require.NoError(t, bed.Sandbox.SetHooks(sandbox.Hooks{InfraDone: seen.done}))
	_, err = bed.Worker(t.Context())
	require.NoError(t, err)
	return bed, seen
}

// requireEmptyDrives requires that no machine has an ISO.
func requireEmptyDrives(t *testing.T, bed *testbed.Bed, nodes ...string) {
	t.Helper()
	for _, node := range nodes {
		drive, err := bed.Sandbox.Machine(node).Drive()
		require.NoError(t, err)
		require.Empty(t, drive.ISO, "of %s", node)
	}
}

// networkImage is what the network of the cluster runs.
func networkImage(t *testing.T, bed *testbed.Bed) string {
	t.Helper()
	network, err := bed.Sandbox.Client().AppsV1().DaemonSets(meta.NamespaceSystem).Get(t.Context(), "sandbox-network", meta.GetOptions{})
	require.NoError(t, err)
	return network.Spec.Template.Spec.Containers[0].Image
}

// Nodes of CloudStack's Kubernetes service are upgraded from the ISO, which is attached,
// used and detached; the worker is killed while a script has it mounted.
func TestUpgradeFromTheBinariesISO(t *testing.T) {
	bed, seen := cksBed(t, 2)
	require.Equal(t, "example.com/network:v1.36.3", networkImage(t, bed))
	require.NoError(t, bed.Sandbox.Machine("w1").SlowScript(3*time.Second))
	const id = "upgrade-iso"
	_, _, err := bed.Ops.Start(t.Context(), ops.Request{ID: id, Kind: operation.KindUpgrade, Cluster: testbed.ClusterName, Route: version.Route{Target: "1.37.2"}})
	require.NoError(t, err)
	require.NoError(t, testbed.WaitForOperation(t.Context(), bed.Ops, id, func(o ops.Operation) bool {
		return phase(o, "w1") == operation.PhaseUpgrading && strings.Contains(strings.Join(bed.Sandbox.Machine("w1").Commands(), "\n"), "kubeadm upgrade node")
	}))
	drive, err := bed.Sandbox.Machine("w1").Drive()
	require.NoError(t, err)
	require.Equal(t, "1.37.2", drive.Version)
	require.NotEmpty(t, drive.Mounted)
	require.NoError(t, bed.KillWorkers())
	_, err = bed.Worker(t.Context())
	require.NoError(t, err)

	var end ops.Operation
	require.NoError(t, bed.Ops.Watch(t.Context(), id, func(o ops.Operation) { end = o }))
	recordIn(t, bed, id)

	require.Equal(t, ops.Done, end.State, text(end))
	require.NoError(t, bed.Verify(t.Context(), testbed.AllAt("1.37.2"), testbed.InState(clusterstate.Running), testbed.OnlyCordoned(),
		testbed.Ran("cp1", "kubeadm upgrade apply v1.37.2", 1), testbed.Ran("w1", "kubeadm upgrade node", 1)))
	require.Equal(t, "example.com/network:v1.37.2", networkImage(t, bed), "what the ISO brings for the cluster")
	require.JSONEq(t, `{"version":"1.37.2","upgraded":["cp1","w1","w2"]}`, string(end.Result), "no warning")
	for _, node := range []string{"cp1", "w1", "w2"} {
		require.Equal(t, []string{"attach-iso", "attach-iso", "detach-iso"}, seen.of(node))
		require.NoError(t, bed.Verify(t.Context(), testbed.Ran(node, "mount -t iso9660 -o ro /dev/sr0", 2), testbed.Ran(node, "umount ", 2), testbed.Ran(node, "eject /dev/sr0", 1)))
	}
	requireEmptyDrives(t, bed, "cp1", "w1", "w2")
}

// A script that fails leaves no ISO, neither in its own machine nor in those that it was
// attached to for later; the retry attaches it again.
func TestFailedUpgradeLeavesNoISO(t *testing.T) {
	bed, seen := cksBed(t, 2)
	require.NoError(t, bed.Sandbox.Machine("w1").FailScript(1))

	end := upgradeTo(t, bed, "upgrade-fails", "1.37.2")
	recordIn(t, bed, "upgrade-fails")

	require.Equal(t, ops.Failed, end.State, text(end))
	require.Contains(t, end.Message, "node w1")
	require.NotContains(t, end.Message, "ISO is still attached")
	require.Equal(t, []string{"attach-iso", "detach-iso"}, seen.of("w2"), "it was never touched")
	require.NoError(t, bed.Verify(t.Context(), testbed.Ran("w1", "eject /dev/sr0", 1), testbed.InState(clusterstate.Alert), testbed.NodeAt("cp1", "1.37.2")))
	requireEmptyDrives(t, bed, "cp1", "w1", "w2")

	require.NoError(t, bed.Sandbox.Machine("w1").HealScript())
	end = upgradeTo(t, bed, "upgrade-again", "1.37.2")

	require.Equal(t, ops.Done, end.State, text(end))
	require.NoError(t, bed.Verify(t.Context(), testbed.AllAt("1.37.2"), testbed.InState(clusterstate.Running), testbed.OnlyCordoned()))
	requireEmptyDrives(t, bed, "cp1", "w1", "w2")

	// There is no such ISO: nothing is drained for it.
	end = upgradeTo(t, bed, "upgrade-unknown", "1.37.9")
	require.Equal(t, ops.RolledBack, end.State, text(end))
	require.Contains(t, end.Message, "there is no ISO of 1.37.9")
	require.NoError(t, bed.Verify(t.Context(), testbed.AllAt("1.37.2"), testbed.InState(clusterstate.Running), testbed.OnlyCordoned()))
}

// An upgrade that is cancelled while it fetches leaves no ISO.
func TestCancelledUpgradeLeavesNoISO(t *testing.T) {
	bed, seen := cksBed(t, 1)
	const id = "upgrade-cancelled"
	_, _, err := bed.Ops.Start(t.Context(), ops.Request{ID: id, Kind: operation.KindUpgrade, Cluster: testbed.ClusterName, Route: version.Route{Target: "1.37.2"}})
	require.NoError(t, err)
	require.NoError(t, testbed.WaitForOperation(t.Context(), bed.Ops, id, func(ops.Operation) bool { return len(seen.of("w1")) > 0 }))
	require.NoError(t, bed.Ops.Cancel(t.Context(), id))

	var end ops.Operation
	require.NoError(t, bed.Ops.Watch(t.Context(), id, func(o ops.Operation) { end = o }))
	recordIn(t, bed, id)

	require.Equal(t, ops.Cancelled, end.State, text(end))
	requireEmptyDrives(t, bed, "cp1", "w1")
	require.NoError(t, bed.Verify(t.Context(), testbed.Ran("cp1", "kubeadm upgrade", 0), testbed.InState(clusterstate.Running), testbed.OnlyCordoned()))
}
