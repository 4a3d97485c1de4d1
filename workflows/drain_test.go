package workflows

import (
	"context"
	"testing"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/drain"
	"ebb/internal/operation"
)

func TestDrainLeavesTheNodeCordoned(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Draining, clusterstate.Running, "", settingsOf(everyNode))
	w.cordons(w1)
	w.drainSettings()
	w.drainsWell(w1)
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(Drain, operation.DrainInput{Cluster: "prod", Nodes: []string{"w1"}})

	require.NoError(t, w.env.GetWorkflowError())
	require.Empty(t, w.called("uncordon"))
}

func TestDrainThatFailsIsRolledBack(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Draining, clusterstate.Alert, "", settingsOf(everyNode))
	w.cordons(w1)
	w.drainSettings()
	w.drainFails(w1, 3)
	w.uncordons(w1)
	w.releases(clusterstate.Alert)

	w.env.ExecuteWorkflow(Drain, operation.DrainInput{Cluster: "prod", Nodes: []string{"w1"}})

	kind, text := w.ended()
	require.Equal(t, operation.TypeRolledBack, kind)
	require.Contains(t, text, "rolled back: uncordoned w1; the cluster is in state Alert")
}

// What cannot be helped by another attempt ends the drain at once.
func TestDrainIsNotRepeatedWhenThatCannotHelp(t *testing.T) {
	for _, kind := range []string{operation.TypeUncordoned, operation.TypeCannotDrain, operation.TypeConfig} {
		w := newWorld(t)
		w.claims(clusterstate.Draining, clusterstate.Running, "", settingsOf(everyNode))
		w.cordons(w1)
		w.drainSettings()
		w.env.OnActivity(act.Drain, mock.Anything, drains(w1)).Return(drain.Result{}, fails(kind, "no use")).Once()
		w.uncordons(w1)
		w.releases(clusterstate.Running)

		w.env.ExecuteWorkflow(Drain, operation.DrainInput{Cluster: "prod", Nodes: []string{"w1"}})

		ended, _ := w.ended()
		require.Equal(t, operation.TypeRolledBack, ended, kind)
	}
}

// An error that may pass is Temporal's to retry and is no attempt.
func TestLostWorkerIsNotAnAttempt(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Draining, clusterstate.Running, "", settingsOf(everyNode))
	w.cordons(w1)
	w.drainSettings()
	var deadlines []any
	w.env.OnActivity(act.Drain, mock.Anything, drains(w1)).Return(func(_ context.Context, in activities.DrainInput) (drain.Result, error) {
		deadlines = append(deadlines, in.Deadline)
		if len(deadlines) < 6 {
			return drain.Result{}, temporal.NewApplicationError("this worker is stopping", "WorkerStopping")
		}
		return drain.Result{}, nil
	}).Times(6)
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(Drain, operation.DrainInput{Cluster: "prod", Nodes: []string{"w1"}})

	require.NoError(t, w.env.GetWorkflowError())
	require.Equal(t, deadlines[0], deadlines[5], "the attempt keeps its end")
}
