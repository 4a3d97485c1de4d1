package operations

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.uber.org/zap"

	"ebb/internal/clusterstate"
	"ebb/internal/config"
	"ebb/internal/engine"
	"ebb/internal/freeport"
	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/internal/testbed"
	"ebb/internal/version"
)

// `ebb dev`, which is engine and worker at once, is killed in the middle of an
// upgrade and started again on the same state directory.
func TestDevKilledInTheMiddleOfAnUpgrade(t *testing.T) {
	dir := t.TempDir()
	port, err := freeport.One(t.Context(), "127.0.0.1")
	require.NoError(t, err)
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

	_, _, err = operations.Start(t.Context(), ops.Request{ID: "dev-upgrade", Kind: operation.KindUpgrade, Cluster: testbed.ClusterName, Route: version.Route{Target: "1.38.1"}})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	require.NoError(t, testbed.WaitForOperation(ctx, operations, "dev-upgrade", idle))
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

// A worker that is asked to stop hands a running drain to the other one, which
// goes on in the same attempt.
func TestWorkerHandsOverWhenItStops(t *testing.T) {
	allow := forbid(t)
	require.NoError(t, shared.Configure(func(c *config.Cluster) { c.Drain.Timeout = config.Duration(time.Minute) }))
	t.Cleanup(func() { require.NoError(t, shared.Configure(nil)) })
	require.NoError(t, shared.KillWorkers())
	both := map[string]*testbed.Process{}
	for range 2 {
		w, err := shared.Worker(t.Context())
		require.NoError(t, err)
		both[fmt.Sprintf(":%d", w.PID())] = w
	}
	node := webHosts(t)[0]
	id := begin(t, ops.Request{Kind: operation.KindDrain, Nodes: []string{node}})
	until(t, id, blocked)
	first := drainer(t, id)
	require.Contains(t, both, first)

	stopping := time.Now()
	require.NoError(t, both[first].Stop())
	require.Zero(t, both[first].ExitCode())
	require.Less(t, time.Since(stopping), 10*time.Second, "within its grace")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, testbed.Poll(ctx, func() (bool, error) { return drainer(t, id) != first, nil }))
	until(t, id, blocked)
	allow()

	end := finish(t, id)
	require.Equal(t, ops.Done, end.State, text(end))
	scheduled := 0
	for _, event := range events(t, id) {
		if event.GetActivityTaskScheduledEventAttributes().GetActivityType().GetName() == "Drain" {
			scheduled++
		}
	}
	require.Equal(t, 1, scheduled, "the handover is not an attempt")
	operatorCordons(t, node, false)
	untouched(t)
}

// drainer is the end of the identity, ":pid", of the worker that has the drain of
// an operation, or "".
func drainer(t *testing.T, id string) string {
	t.Helper()
	d, err := shared.Client.DescribeWorkflowExecution(t.Context(), id, "")
	require.NoError(t, err)
	for _, a := range d.GetPendingActivities() {
		if worker := a.GetLastWorkerIdentity(); a.GetActivityType().GetName() == "Drain" && a.GetState() == enumspb.PENDING_ACTIVITY_STATE_STARTED {
			return worker[strings.LastIndex(worker, ":"):]
		}
	}
	return ""
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
