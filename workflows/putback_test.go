package workflows

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/drain"
	"ebb/internal/operation"
)

// tried is when an activity has failed some times; the test environment makes ten
// attempts, which take 46 s, where the engine goes on for a day.
const tried = 20 * time.Second

var errAway = errors.New("connection refused")

// clusterIsAway lets every attempt to put something back fail.
func (w *world) clusterIsAway() {
	w.env.OnActivity(act.Uncordon, mock.Anything, mock.Anything).Return(func(_ context.Context, in activities.NodeInput) (activities.UncordonResult, error) {
		w.note("uncordon " + in.Node)
		return activities.UncordonResult{}, errAway
	})
	w.env.OnActivity(act.Release, mock.Anything, mock.Anything).Return(func(context.Context, activities.ReleaseInput) (activities.ReleaseResult, error) {
		w.note("release")
		return activities.ReleaseResult{}, errAway
	})
}

// cancelledInDrain is a scale-down of w2 and w3 that is cancelled while it drains w2.
func cancelledInDrain(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.claims(clusterstate.Scaling, clusterstate.Running, "", settingsOf(everyNode))
	w.machinesAre(false, w2, w3)
	w.roomFor(w2, w3)
	w.cordons(w2, w3)
	w.drainSettings()
	w.env.OnActivity(act.Drain, mock.Anything, drains(w2)).Return(func(context.Context, activities.DrainInput) (drain.Result, error) {
		return drain.Result{}, w.cancelDuring("drain w2")
	}).Once()
	return w
}

func TestRollBackOfADeadClusterTriesAllNodesAtOnce(t *testing.T) {
	w := cancelledInDrain(t)
	w.clusterIsAway()
	w.env.RegisterDelayedCallback(func() {
		require.Contains(t, w.called("uncordon"), "uncordon w3", "it does not wait for w2")
	}, tried)

	w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Nodes: []string{"w2", "w3"}})

	_, text := w.ended()
	require.Contains(t, text, "could not uncordon w2")
	require.Contains(t, text, "w3")
}

func TestCancelAgainEndsTheRollBackOfADeadCluster(t *testing.T) {
	w := cancelledInDrain(t)
	w.clusterIsAway()
	var answer *answered
	w.env.RegisterDelayedCallback(func() { answer = w.steers(operation.UpdateGiveUp) }, tried)

	w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Nodes: []string{"w2", "w3"}})

	require.Contains(t, answer.text, "is left and named")
	var canceled *temporal.CanceledError
	require.ErrorAs(t, w.env.GetWorkflowError(), &canceled)
	var (
		text, kind string
		status     operation.Status
		o          operation.Outcome
	)
	require.NoError(t, canceled.Details(&text, &kind, &status, &o))
	require.Equal(t, operation.LockHeld, o.Lock)
	require.Contains(t, o.LockFault, "connection refused", "it was tried once more")
	require.Len(t, o.NotUncordoned, 2)
	for i, node := range []string{"w2", "w3"} {
		require.Equal(t, operation.NodeFault{Node: node, Text: "given up, as the operation was cancelled again"}, o.NotUncordoned[i])
	}
}

// An attempt may be under way when the operator gives up: how it ended is told as well.
func TestWhyANodeIsLeft(t *testing.T) {
	forbidden := temporal.NewApplicationError("uncordon node w2: Unauthorized", "")
	e := &execution{}
	require.Equal(t, "uncordon node w2: Unauthorized", e.whyLeft(forbidden))

	e.control.givenUp = true
	require.Equal(t, "given up, as the operation was cancelled again", e.whyLeft(temporal.NewCanceledError()))
	require.Equal(t, "given up, as the operation was cancelled again: uncordon node w2: Unauthorized", e.whyLeft(forbidden))
}

func TestGivingUpIsForWhatWasCancelled(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Draining, clusterstate.Running, "", settingsOf(everyNode))
	w.cordons(w1)
	w.drainSettings()
	var answer *answered
	w.env.OnActivity(act.Drain, mock.Anything, drains(w1)).Return(func(context.Context, activities.DrainInput) (drain.Result, error) {
		answer = w.steers(operation.UpdateGiveUp)
		return drain.Result{DrainLeft: operation.DrainLeft{Node: "w1"}}, nil
	}).Once()
	w.releases(clusterstate.Running)
	w.env.ExecuteWorkflow(Drain, operation.DrainInput{Cluster: "prod", Nodes: []string{"w1"}})
	require.NoError(t, w.env.GetWorkflowError())
	require.Contains(t, answer.refused, "was not cancelled")
}

func TestCancelAgainReachesTheNodeOfAnUpgrade(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Upgrading, clusterstate.Running, target, settingsOf(everyNode))
	w.fit(everyNode...)
	w.runs(activities.PhaseStage, everyNode...)
	w.reports(cp1)
	w.cordons(cp1)
	w.drainSettings()
	w.env.OnActivity(act.Drain, mock.Anything, drains(cp1)).Return(func(context.Context, activities.DrainInput) (drain.Result, error) {
		return drain.Result{}, w.cancelDuring("drain cp1")
	}).Once()
	w.clusterIsAway()
	w.noISO(cp1)
	w.env.RegisterDelayedCallback(func() { w.steers(operation.UpdateGiveUp) }, tried)

	w.env.ExecuteWorkflow(Upgrade, upgrade())

	_, text := w.ended()
	require.Contains(t, text, "given up, as the operation was cancelled again")
}

func TestPausedAndThenCancelledGoesOnWithWhatCannotBeStopped(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Scaling, clusterstate.Running, "", settingsOf(everyNode))
	w.machinesAre(false, w2, w3)
	w.roomFor(w2, w3)
	w.cordons(w2, w3)
	w.drainSettings()
	w.drainsWell(w2, w3)
	w.env.OnActivity(act.DeleteNode, mock.Anything, machine(w2)).Return(func(context.Context, activities.MachineInput) (activities.DeleteNodeResult, error) {
		w.steers(operation.UpdatePause)
		return activities.DeleteNodeResult{}, nil
	}).Once()
	w.env.OnActivity(act.DestroyMachine, mock.Anything, machine(w2)).Return(activities.DestroyMachineResult{}, nil).Once()
	w.removes(w3)
	var again *answered
	w.env.RegisterDelayedCallback(func() {
		require.False(t, w.status().Paused.IsZero())
		w.env.CancelWorkflow()
		again = w.steers(operation.UpdatePause)
	}, 10*time.Minute)
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Nodes: []string{"w2", "w3"}})

	require.NoError(t, w.env.GetWorkflowError(), "everything was done")
	require.True(t, w.status().Paused.IsZero())
	require.Contains(t, again.refused, "was cancelled")
}
