package workers

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.uber.org/zap"

	"ebb/internal/embedded"
	"ebb/internal/engine"
	"ebb/internal/operation"
	"ebb/workflows"
)

func startEngine(t *testing.T) (client.Client, *embedded.Server) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: starts a Temporal server")
	}
	server, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir(), UIPort: -1, Log: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	c, err := engine.Dial(t.Context(), zap.NewNop(), engine.Options{Address: server.Address(), Namespace: server.Namespace()})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c, server
}

func TestWorkflowTypes(t *testing.T) {
	require.Equal(t, []string{"Drain", "ScaleDown", "Upgrade", "Uncordon", "UpgradeNode", "StageNode", "Reconcile"}, WorkflowTypes())
}

// A worker without a configuration runs, refuses what it is asked for, and
// stops when its context ends.
func TestWorkerRunsAndStops(t *testing.T) {
	c, server := startEngine(t)
	w, err := New(Options{Client: c, Namespace: server.Namespace(), Log: zap.NewNop()})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()

	run, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: "op", TaskQueue: engine.TaskQueue}, workflows.Drain,
		operation.DrainInput{Cluster: "prod", Nodes: []string{"w1"}})
	require.NoError(t, err)
	err = run.Get(t.Context(), nil)
	require.ErrorContains(t, err, "op refused: ")
	require.ErrorContains(t, err, "type: "+operation.TypeRefused)

	stop()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(stopGrace):
		t.Fatal("the worker had nothing to do and did not stop")
	}
}

func TestClosed(t *testing.T) {
	c, server := startEngine(t)
	e := &temporalEngine{client: c, namespace: server.Namespace()}
	closed, err := e.Closed(t.Context(), "nobody")
	require.NoError(t, err)
	require.True(t, closed, "an unknown operation is over")

	_, err = c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: "op", TaskQueue: "nobody polls"}, "Any")
	require.NoError(t, err)
	closed, err = e.Closed(t.Context(), "op")
	require.NoError(t, err)
	require.False(t, closed)

	require.NoError(t, c.TerminateWorkflow(t.Context(), "op", "", ""))
	closed, err = e.Closed(t.Context(), "op")
	require.NoError(t, err)
	require.True(t, closed)

	server.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = e.Closed(ctx, "op")
	require.Error(t, err, "an engine that does not answer says nothing of the operation")
	var unknown *serviceerror.NotFound
	require.NotErrorAs(t, err, &unknown)
}

func TestIdentityIsThatOfTheEngine(t *testing.T) {
	c, server := startEngine(t)
	want, err := engine.ID(t.Context(), c, server.Namespace())
	require.NoError(t, err)
	got, err := (&temporalEngine{client: c, namespace: server.Namespace()}).Identity(t.Context())
	require.NoError(t, err)
	require.Equal(t, want, got)
}
