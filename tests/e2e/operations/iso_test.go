package operations

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/clusterstate"
	"ebb/internal/config"
	"ebb/internal/infra/cloudstacktest"
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
func cksBed(t *testing.T, workers int, edit ...func(*config.Cluster)) (*testbed.Bed, *drives) {
	t.Helper()
	bed, err := testbed.Start(t.Context(), testbed.Options{
		Dir: t.TempDir(), UIPort: -1, Sandbox: sandbox.Options{ControlPlanes: 1, Workers: workers, CKS: true},
		Edit: func(c *config.Cluster) {
			c.Upgrade.Script = config.ScriptCKSISO
			for _, change := range edit {
				change(c)
			}
		},
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

// The same with the API of CloudStack: the ISO of its Kubernetes version is found, what an
// earlier upgrade has left is taken out first, and a version that is disabled there stops the
// upgrade before anything is drained.
func TestUpgradeFromTheISOOfCloudStack(t *testing.T) {
	const of136, of137 = "dddddddd-0000-4000-8000-000000000136", "dddddddd-0000-4000-8000-000000000137"
	nodes := map[string]string{"11111111-1111-4111-8111-111111111111": "cp1", "22222222-2222-4222-8222-222222222222": "w1"}
	var vms []cloudstacktest.VM
	for id, name := range nodes {
		vms = append(vms, cloudstacktest.VM{ID: id, Name: name, State: "Running", Addresses: []string{"127.0.0.1"}, ISO: map[string]string{"w1": of136}[name]})
	}
	cloud := cloudstacktest.Start(false, vms...)
	t.Cleanup(cloud.Close)
	cloud.JobPolls = 1
	cloud.ISOs = []cloudstacktest.ISO{{ID: of136, Name: "setup-v1.36.3"}, {ID: of137, Name: "setup-v1.37.2"}}
	cloud.Versions = []cloudstacktest.KubernetesVersion{
		{ID: "v136", Name: "v1.36.3", Version: "1.36.3", ISO: of136, State: "Enabled"}, {ID: "v137", Name: "v1.37.2", Version: "1.37.2", ISO: of137, State: "Enabled"},
	}
	keys := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(keys, []byte("apiKey="+cloudstacktest.APIKey+"\nsecretKey="+cloudstacktest.SecretKey), 0o600))
	bed, _ := cksBed(t, 1, func(c *config.Cluster) {
		c.Infrastructure = config.Infrastructure{Provider: config.InfraCloudStack, Endpoint: cloud.Endpoint(), CredentialsFile: keys}
	})
	require.NoError(t, bed.Sandbox.Machine("w1").SetISO("1.36.3"))
	cloud.Update(func(s *cloudstacktest.Server) {
		s.ChangeISO = func(vm cloudstacktest.VM, iso string) error {
			return bed.Sandbox.Machine(vm.Name).SetISO(map[string]string{of136: "1.36.3", of137: "1.37.2"}[iso])
		}
	})

	end := upgradeTo(t, bed, "upgrade-cloud", "1.37.2")

	require.Equal(t, ops.Done, end.State, text(end))
	require.JSONEq(t, `{"version":"1.37.2","upgraded":["cp1","w1"]}`, string(end.Result), "no warning")
	require.NoError(t, bed.Verify(t.Context(), testbed.AllAt("1.37.2"), testbed.InState(clusterstate.Running), testbed.OnlyCordoned()))
	require.Len(t, cloud.Calls("attachIso"), 2)
	require.Len(t, cloud.Calls("detachIso"), 3)
	for id, name := range nodes {
		require.Empty(t, cloud.VM(id).ISO, name)
		requireEmptyDrives(t, bed, name)
	}

	cloud.Update(func(s *cloudstacktest.Server) {
		s.Versions = append(s.Versions, cloudstacktest.KubernetesVersion{ID: "v1373", Name: "v1.37.3", Version: "1.37.3", ISO: of136, State: "Disabled"})
	})
	end = upgradeTo(t, bed, "upgrade-disabled", "1.37.3")
	require.Equal(t, ops.RolledBack, end.State, text(end))
	require.Contains(t, end.Message, "Kubernetes version 1.37.3 of CloudStack (v1.37.3) is Disabled")
	require.NoError(t, bed.Verify(t.Context(), testbed.InState(clusterstate.Running), testbed.OnlyCordoned()))
}
