package operations

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb/internal/clusterstate"
	"ebb/internal/config"
	"ebb/internal/lease"
	"ebb/internal/ops"
	"ebb/internal/testbed"
	"ebb/internal/version"
)

// slowMachines is an infrastructure that takes 0.4 s to tell the state of a machine.
const slowMachines = `asked=$(cat); sleep 0.4
case $asked in *'"node":"w150"'*) echo '{"state":"stopped"}' ;; *) echo '{"state":"running"}' ;; esac`

// The states of 200 machines, one after another, would take 80 seconds: longer than a claim has.
func TestRetryOfALargeClusterIsDecided(t *testing.T) {
	bed := ownBed(t, 3, func(c *config.Cluster) {
		c.Infrastructure = config.Infrastructure{Provider: config.InfraExec, Command: []string{"/bin/sh", "-c", slowMachines}}
	})
	for i := 4; i < 200; i++ {
		addNode(t, bed, fmt.Sprintf("w%d", i))
	}
	leaveInAlert(t, bed, "1.37.2")
	began := time.Now()

	end := upgradeTo(t, bed, "retry-large", "1.37.2")

	require.Equal(t, ops.Refused, end.State, text(end))
	require.Contains(t, end.Message, "the machine of w150 is down: start it, then retry the upgrade")
	require.Less(t, time.Since(began), time.Minute)
	require.NoError(t, bed.Verify(t.Context(), testbed.InState(clusterstate.Alert)))
}

// addNode registers a node that has no machine in the sandbox.
func addNode(t *testing.T, bed *testbed.Bed, name string) {
	t.Helper()
	nodes := bed.Sandbox.Client().CoreV1().Nodes()
	_, err := nodes.Create(t.Context(), &core.Node{ObjectMeta: meta.ObjectMeta{Name: name}}, meta.CreateOptions{})
	require.NoError(t, err)
	status := fmt.Sprintf(`{"status":{"nodeInfo":{"machineID":"machine-of-%s","kubeletVersion":"v1.36.3"}}}`, name)
	_, err = nodes.Patch(t.Context(), name, types.StrategicMergePatchType, []byte(status), meta.PatchOptions{}, "status")
	require.NoError(t, err)
}

// leaveInAlert leaves the cluster as an upgrade that has failed does.
func leaveInAlert(t *testing.T, bed *testbed.Bed, target version.Version) {
	t.Helper()
	store := lease.NewStore(bed.Sandbox.Client(), time.Now)
	_, err := store.Acquire(t.Context(), lease.Claim{
		Operation: "failed", To: clusterstate.Upgrading,
		Accept: func(clusterstate.Record) (version.Version, error) { return target, nil },
		Dead:   func(context.Context, clusterstate.Record) (bool, error) { return false, nil },
	})
	require.NoError(t, err)
	_, err = store.Release(t.Context(), lease.Outcome{Operation: "failed", To: clusterstate.Alert})
	require.NoError(t, err)
}
