package operations

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/clusterstate"
	"ebb/internal/config"
	"ebb/internal/ops"
	"ebb/internal/testbed"
)

// The API server behind the address in the kubeconfig is ready all the time, as another
// control plane's would be. The upgraded node's own is not, and is waited for.
func TestOwnAPIServerOfAControlPlaneIsWaitedFor(t *testing.T) {
	bed := ownBed(t, 1, func(c *config.Cluster) { c.Upgrade.ReadyTimeout = config.Duration(8 * time.Second) })
	cp1 := bed.Sandbox.Machine("cp1")
	require.NoError(t, cp1.SetAPIServer(t.Context(), false))

	end := upgradeTo(t, bed, "upgrade-refused", "1.37.2")

	require.Equal(t, ops.Failed, end.State, text(end))
	for _, part := range []string{"node cp1", "step ready", "the API server is not steady: the API server on cp1 (127.0.0.1:"} {
		require.Contains(t, end.Message, part)
	}
	require.NoError(t, bed.Verify(t.Context(), testbed.InState(clusterstate.Alert), testbed.OnlyCordoned(), testbed.Ran("w1", "kubeadm upgrade node", 0)))

	asked := cp1.APIServerAsked()
	require.NoError(t, cp1.SetAPIServer(t.Context(), true))
	end = upgradeTo(t, bed, "upgrade-answered", "1.37.2")

	require.Equal(t, ops.Done, end.State, text(end))
	require.Greater(t, cp1.APIServerAsked(), asked, "it was asked on its own node")
	require.NoError(t, bed.Verify(t.Context(), testbed.AllAt("1.37.2"), testbed.InState(clusterstate.Running), testbed.OnlyCordoned()))
}
