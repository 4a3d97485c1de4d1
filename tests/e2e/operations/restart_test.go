package operations

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"ebb/internal/clusterstate"
	"ebb/internal/engine"
	"ebb/internal/ops"
	"ebb/internal/testbed"
	"ebb/workflows"
)

// `ebb dev`, which is engine and worker at once, is killed in the middle of an
// upgrade and started again on the same state directory.
func TestDevKilledInTheMiddleOfAnUpgrade(t *testing.T) {
	dir, port := t.TempDir(), freePort(t)
	binary, err := testbed.Binary("ebb")
	require.NoError(t, err)
	dev := func() *testbed.Process {
		p, err := testbed.StartProcess(t.Context(), filepath.Join(dir, "dev.log"), append(os.Environ(), "EBB_CONFIG="+shared.Config),
			binary, "dev", "--state-dir", filepath.Join(dir, "state"), "--port", strconv.Itoa(port), "--ui-port", "-1")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, p.Stop()) })
		return p
	}
	first := dev()
	operations := connect(t, port)
	allow := forbid(t)

	_, _, err = operations.Start(t.Context(), ops.Request{ID: "dev-upgrade", Kind: workflows.KindUpgrade, Cluster: testbed.ClusterName, Target: "1.38.1"})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	require.NoError(t, testbed.Until(ctx, operations, "dev-upgrade", blocked))
	require.NoError(t, first.Kill())
	allow()
	second := dev()

	var end ops.Operation
	require.NoError(t, connect(t, port).Watch(ctx, "dev-upgrade", func(o ops.Operation) { end = o }))
	require.Equal(t, ops.Done, end.State, text(end))
	verify(t, testbed.AllAt("1.38.1"), testbed.InState(clusterstate.Running), testbed.TargetIs(""), testbed.OnlyCordoned(),
		testbed.Ran("cp1", "kubeadm upgrade apply v1.38.1", 1))
	require.NoError(t, second.Stop())
	require.Zero(t, second.ExitCode(), "SIGTERM ends it in an orderly way")
}

// connect dials an engine that may still be starting.
func connect(t *testing.T, port int) ops.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var operations ops.Client
	require.NoError(t, testbed.Poll(ctx, func() (bool, error) {
		c, err := engine.Dial(ctx, zap.NewNop(), engine.Options{Address: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))})
		if err != nil {
			return false, nil //nolint:nilerr // it is asked again
		}
		t.Cleanup(c.Close)
		operations = ops.NewTemporal(c, "default")
		return true, nil
	}))
	return operations
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	require.NoError(t, l.Close())
	return port
}
