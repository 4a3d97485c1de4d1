package operations

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"

	"ebb/internal/operation"
	"ebb/internal/ops"
)

// What was taken is put back although the API server accepts no request for a while:
// the cordons and the lock wait for other credentials, and the status says so.
func TestExpiredTokenIsWaitedFor(t *testing.T) {
	forbid(t)
	leaving := webHosts(t)[:2]
	id := begin(t, ops.Request{Kind: operation.KindScaleDown, Nodes: leaving})
	until(t, id, blocked)
	restore := replaceKubeconfig(t, expired)
	require.NoError(t, shared.Ops.Cancel(t.Context(), id))
	until(t, id, inTrouble("Uncordon", "Unauthorized"))

	restore()
	end := finish(t, id)
	require.Equal(t, ops.Cancelled, end.State, text(end))
	require.Contains(t, end.Message, "uncordoned "+strings.Join(leaving, ", "))
	untouched(t)
}

// A cluster that never answers again is not waited for, when the operator says so.
func TestCancelAgainEndsTheRollBack(t *testing.T) {
	allow := forbid(t)
	leaving := webHosts(t)[:2]
	id := begin(t, ops.Request{Kind: operation.KindDrain, Nodes: leaving})
	until(t, id, blocked)
	restore := replaceKubeconfig(t, expired)
	code, out := ebb(t, "cancel", id)
	require.Equal(t, 0, code, out)
	until(t, id, inTrouble("Uncordon", "Unauthorized"))
	code, out = ebb(t, "cancel", id)
	require.Equal(t, 0, code, out)
	require.Contains(t, out, "what cannot be put back now is left and named")

	end := finish(t, id)
	require.Equal(t, ops.Cancelled, end.State, text(end))
	require.Equal(t, operation.LockHeld, end.Outcome.Lock)
	require.Len(t, end.Outcome.NotUncordoned, 2)
	for _, node := range leaving {
		require.Contains(t, end.Message, node+" (given up, as the operation was cancelled again")
	}

	restore()
	allow()
	end = finish(t, begin(t, ops.Request{Kind: operation.KindDrain, Nodes: leaving[:1]}))
	require.Equal(t, ops.Done, end.State, text(end), "whoever comes next cleans up")
	operatorCordons(t, leaving[0], false)
	untouched(t)
}

// expired replaces the token in a kubeconfig.
func expired(path string) error {
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return err
	}
	for _, user := range config.AuthInfos {
		user.Token = "expired"
	}
	return clientcmd.WriteToFile(*config, path)
}

// A kubeconfig that is away for a moment is no reason to refuse an operation, not even
// to a worker that has just started.
func TestKubeconfigThatIsBeingReplacedIsWaitedFor(t *testing.T) {
	require.NoError(t, shared.KillWorkers())
	restore := replaceKubeconfig(t, os.Remove)
	_, err := shared.Worker(t.Context())
	require.NoError(t, err)
	id := begin(t, ops.Request{Kind: operation.KindDrain, Nodes: []string{"w2"}})
	until(t, id, inTrouble("Claim", "kubeconfig of cluster"))

	restore()
	end := finish(t, id)
	require.Equal(t, ops.Done, end.State, text(end))
	operatorCordons(t, "w2", false)
	untouched(t)
}

// replaceKubeconfig changes the workers' kubeconfig until restore is called or the test is over.
func replaceKubeconfig(t *testing.T, change func(path string) error) (restore func()) {
	t.Helper()
	good, err := os.ReadFile(shared.Kubeconfig)
	require.NoError(t, err)
	restore = func() { require.NoError(t, os.WriteFile(shared.Kubeconfig, good, 0o600)) }
	t.Cleanup(restore)
	require.NoError(t, change(shared.Kubeconfig))
	return restore
}

// inTrouble holds while an activity is tried again for a reason with these words.
func inTrouble(words ...string) func(ops.Operation) bool {
	return func(o ops.Operation) bool {
		for _, live := range o.Live {
			found := live.Trouble != ""
			for _, word := range words {
				found = found && strings.Contains(live.Trouble, word)
			}
			if found {
				return true
			}
		}
		return false
	}
}
