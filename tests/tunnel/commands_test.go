package tunnel

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"ebb/internal/testbed"
)

// ebb runs a command on the worker's ebb.yaml and returns what it printed.
func ebb(t *testing.T, args ...string) (string, error) {
	t.Helper()
	binary, err := testbed.Binary("ebb")
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), binary, args...)
	cmd.Env = append(os.Environ(), shared.Env()...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// The commands that look at a cluster, through its tunnel, tell which agents it has and which
// of them drain.
func TestCommandsTellOfAgents(t *testing.T) {
	g := newGateway(t, "commands", 1, atOnce)
	out, err := ebb(t, "clusters", "check", cluster)
	require.Error(t, err)
	require.Contains(t, out, "no agent is connected: see the log of ebb-agent")
	require.Contains(t, out, "the API server does not answer")

	all := connected(t, []*gateway{g}, "w1", "w2")
	out, err = ebb(t, "clusters", "check", cluster)
	require.NoError(t, err, out)
	require.Contains(t, out, "✓ tunnel: 2 agents: ")
	require.Contains(t, out, "reached over SSH, the right machine")

	c, err := g.dialer().DialContext(t.Context(), "tcp", echoes(t))
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	busy := "w1"
	if g.streams()["w2"] > 0 {
		busy = "w2"
	}
	all[busy].signal(syscall.SIGTERM)
	eventually(t, "it drains", func() bool { return g.states()[busy] == "Draining" })
	out, err = ebb(t, "clusters", "check", cluster)
	require.NoError(t, err, out)
	require.Contains(t, out, busy+" (Draining)")
	out, err = ebb(t, "status", cluster)
	require.NoError(t, err, out)
	require.Regexp(t, busy+` +Draining +1 `, out)
	out, err = ebb(t, "status", cluster, "-o", "json")
	require.NoError(t, err, out)
	require.Regexp(t, `"agentID":"`+busy+`"[^}]*"state":"Draining"`, out)
}
