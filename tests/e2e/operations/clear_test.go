package operations

import (
	"testing"

	"github.com/stretchr/testify/require"

	"ebb/internal/clusterstate"
	"ebb/internal/lease"
	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/internal/testbed"
	"ebb/internal/version"
)

func TestClustersClearIsAWayOutOfAlert(t *testing.T) {
	alone(t)
	clearState := func(more ...string) (int, string) {
		return ebb(t, append([]string{"clusters", "clear", testbed.ClusterName}, more...)...)
	}
	code, out := clearState()
	require.Equal(t, 2, code, "a reason is required: %s", out)
	code, out = clearState("--reason", "in vain")
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "there is nothing to clear")

	_, err := lock().Acquire(t.Context(), claimOf("lost", clusterstate.Scaling, "")) // from an engine that is not ours
	require.NoError(t, err)
	code, out = ebb(t, "drain", testbed.ClusterName, "w99")
	require.Equal(t, 3, code, out)
	require.Contains(t, out, "ebb clusters clear sandbox --holder-is-gone lost --reason TEXT")
	code, out = clearState("--reason", "the engine burned down")
	require.Equal(t, 3, code, out)
	require.Contains(t, out, "--holder-is-gone lost")
	code, out = clearState("--reason", "the engine burned down", "--holder-is-gone", "lost")
	require.Zero(t, code, out)
	record, err := lock().Get(t.Context())
	require.NoError(t, err)
	require.Equal(t, clusterstate.Running, record.State)
	require.Empty(t, record.Holder)
	require.Regexp(t, `Z by .*@.* \(was Scaling, held by lost\): the engine burned down$`, record.Cleared)
	_, out = ebb(t, "status", testbed.ClusterName)
	require.Contains(t, out, "the engine burned down")

	forbid(t)
	running := begin(t, ops.Request{Kind: operation.KindDrain, Nodes: webHosts(t)[:1]})
	until(t, running, blocked)
	code, out = clearState("--reason", "impatience", "--holder-is-gone", running)
	require.Equal(t, 3, code, out)
	require.Contains(t, out, "ebb cancel "+running)
	require.NoError(t, shared.Ops.Cancel(t.Context(), running))
	require.True(t, finish(t, running).RolledBack)
	untouched(t)
}

func TestNewerPatchIsTheRetryOfABadOne(t *testing.T) {
	alone(t)
	_, err := lock().Acquire(t.Context(), claimOf("bad", clusterstate.Upgrading, "1.37.1"))
	require.NoError(t, err)
	_, err = lock().Release(t.Context(), lease.Outcome{Operation: "bad", To: clusterstate.Alert})
	require.NoError(t, err)
	t.Cleanup(func() { settle(t); untouched(t) })
	for target, want := range map[version.Version]int{"1.37.1": 0, "1.37.2": 0, "1.37.0": 3, "1.38.1": 3} {
		code, out := ebb(t, "plan", "upgrade", testbed.ClusterName, "--to", string(target))
		require.Equal(t, want, code, "%s: %s", target, out)
		if want == 0 {
			require.Contains(t, out, "it goes on where the last one stopped")
		}
	}
}
