package workflows

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/drain"
	"ebb/internal/operation"
	"ebb/internal/policy"
)

func TestPausedOperationStartsNoFurtherNode(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Scaling, clusterstate.Running, "", settingsOf(everyNode))
	w.machinesAre(false, w2, w3)
	w.roomFor(w2, w3)
	w.cordons(w2, w3)
	w.drainSettings()
	var pause, twice, resume *answered
	w.env.OnActivity(act.Drain, mock.Anything, drains(w2)).Return(func(context.Context, activities.DrainInput) (drain.Result, error) {
		w.note("drain w2")
		pause = w.steers(operation.UpdatePause)
		twice = w.steers(operation.UpdatePause)
		return drain.Result{DrainLeft: operation.DrainLeft{Node: "w2"}}, nil
	}).Once()
	start := w.env.Now()
	w.env.RegisterDelayedCallback(func() {
		require.Equal(t, []string{"drain w2"}, w.called("drain"))
		require.False(t, w.status().Paused.IsZero())
		require.Contains(t, w.status().Markdown(), "**Paused** since")
		resume = w.steers(operation.UpdateResume)
	}, 2*time.Hour) // past the deadline of one hour
	w.drainsWell(w3)
	w.removes(w2, w3)
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Nodes: []string{"w2", "w3"}})

	require.NoError(t, w.env.GetWorkflowError())
	require.Equal(t, "no further node is started; those under way are seen through", pause.text)
	require.Contains(t, twice.refused, "is paused already, since")
	require.Equal(t, "it goes on after a pause of 2h0m0s", resume.text)
	require.Equal(t, 3*time.Hour, w.status().Deadline.Sub(start).Round(time.Minute), "the pause does not count against the deadline")
	require.True(t, w.status().Paused.IsZero())
}

func TestPausedOperationCanBeCancelled(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Scaling, clusterstate.Running, "", settingsOf(everyNode))
	w.machinesAre(false, w2, w3)
	w.roomFor(w2, w3)
	w.cordons(w2, w3)
	w.drainSettings()
	w.env.OnActivity(act.Drain, mock.Anything, drains(w2)).Return(func(context.Context, activities.DrainInput) (drain.Result, error) {
		w.steers(operation.UpdatePause)
		return drain.Result{DrainLeft: operation.DrainLeft{Node: "w2"}}, nil
	}).Once()
	w.env.RegisterDelayedCallback(w.env.CancelWorkflow, 10*time.Minute)
	w.uncordons(w2, w3)
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Nodes: []string{"w2", "w3"}})

	kind, text := w.ended()
	require.Equal(t, "Canceled", kind)
	require.Contains(t, text, "nothing was removed, uncordoned w2, w3")
}

func TestResumeOfWhatIsNotPausedChangesNothing(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Draining, clusterstate.Running, "", settingsOf(everyNode))
	w.cordons(w1)
	w.drainSettings()
	var resume *answered
	w.env.OnActivity(act.Drain, mock.Anything, drains(w1)).Return(func(context.Context, activities.DrainInput) (drain.Result, error) {
		resume = w.steers(operation.UpdateResume)
		return drain.Result{DrainLeft: operation.DrainLeft{Node: "w1"}}, nil
	}).Once()
	w.releases(clusterstate.Running)
	w.env.ExecuteWorkflow(Drain, operation.DrainInput{Cluster: "prod", Nodes: []string{"w1"}})
	require.NoError(t, w.env.GetWorkflowError())
	require.Equal(t, "it was not paused", resume.text)
}

func TestRetryNowEndsTheWait(t *testing.T) {
	w := newWorld(t)
	survey := settingsOf(everyNode)
	w.claims(clusterstate.Draining, clusterstate.Running, "", survey)
	w.cordons(w1)
	w.env.OnActivity(act.DrainSettings, mock.Anything, mock.Anything).
		Return(activities.DrainSettings{Timeout: 5 * time.Minute, RetryInterval: 20 * time.Minute, Drain: drain.Settings{Parallel: 16}}, nil)
	var early, other, now *answered
	w.env.OnActivity(act.Drain, mock.Anything, drains(w1)).Return(func(context.Context, activities.DrainInput) (drain.Result, error) {
		w.note("drain w1")
		early = w.steers(operation.UpdateRetryNow, operation.NodeRequest{})
		return drain.Result{}, fails(operation.TypeDrain, "default/web-1 is blocked")
	}).Once()
	w.env.RegisterDelayedCallback(func() {
		require.Equal(t, operation.PhaseWaitingToRetry, w.status().Nodes[0].Phase)
		other = w.steers(operation.UpdateRetryNow, operation.NodeRequest{Node: "w9"})
		now = w.steers(operation.UpdateRetryNow, operation.NodeRequest{Node: "w1"})
	}, time.Minute)
	w.drainsWell(w1)
	w.releases(clusterstate.Running)
	start := w.env.Now()

	w.env.ExecuteWorkflow(Drain, operation.DrainInput{Cluster: "prod", Nodes: []string{"w1"}})

	require.NoError(t, w.env.GetWorkflowError())
	require.Equal(t, "no node waits for another attempt", early.refused)
	require.Equal(t, "w9 does not wait for another attempt", other.refused)
	require.Equal(t, "the next attempt begins: w1", now.text)
	require.Equal(t, time.Minute, w.env.Now().Sub(start).Round(time.Second), "nineteen minutes of waiting are saved")
	require.Equal(t, []string{"drain w1", "drain w1"}, w.called("drain"))
}

func TestSkippedWorkerIsLeftOutAndTheUpgradeSaysSo(t *testing.T) {
	w := newWorld(t)
	nodes := []policy.Node{cp1, w1, w2}
	w.claims(clusterstate.Upgrading, clusterstate.Running, target, settingsOf(nodes))
	w.fit(nodes...)
	w.runs(activities.PhaseStage, nodes...)
	w.drainSettings()
	w.reports(cp1)
	w.cordons(cp1)
	var pending, twice, controlPlane, unknown *answered
	w.env.OnActivity(act.Drain, mock.Anything, drains(cp1)).Return(func(context.Context, activities.DrainInput) (drain.Result, error) {
		pending = w.steers(operation.UpdateSkipNode, operation.NodeRequest{Node: "w1"})
		twice = w.steers(operation.UpdateSkipNode, operation.NodeRequest{Node: "w1"})
		controlPlane = w.steers(operation.UpdateSkipNode, operation.NodeRequest{Node: "cp1"})
		unknown = w.steers(operation.UpdateSkipNode, operation.NodeRequest{Node: "w9"})
		return drain.Result{DrainLeft: operation.DrainLeft{Node: "cp1"}}, nil
	}).Once()
	w.runs(activities.PhaseUpgrade, cp1)
	w.completes(cp1)
	w.upgrades(w2)
	w.verifies(upgraded(cp1), w1, upgraded(w2))
	w.noISO(cp1)
	w.releases(clusterstate.Alert)

	w.env.ExecuteWorkflow(Upgrade, upgrade())

	kind, text := w.ended()
	require.Equal(t, operation.TypeFailed, kind)
	require.Contains(t, text, "2 of 3 nodes are at 1.37.2")
	require.Contains(t, text, "w1 was left out by the operator: start the upgrade again for it")
	require.Equal(t, "w1 is left out", pending.text)
	require.Contains(t, twice.refused, "left out already")
	require.Contains(t, controlPlane.refused, "cp1 is a control plane")
	require.Contains(t, unknown.refused, `node "w9" is not in this upgrade`)
	require.Empty(t, w.called("cordon w1", "drain w1"))
}

func TestSkippedWorkerThatIsBeingDrainedIsGivenUp(t *testing.T) {
	w := newWorld(t)
	nodes := []policy.Node{cp1, w1, w2}
	survey := settingsOf(nodes)
	w.claims(clusterstate.Upgrading, clusterstate.Running, target, survey)
	w.fit(nodes...)
	w.runs(activities.PhaseStage, nodes...)
	w.env.OnActivity(act.DrainSettings, mock.Anything, mock.Anything).
		Return(activities.DrainSettings{Timeout: 5 * time.Minute, RetryInterval: 5 * time.Minute, Drain: drain.Settings{Parallel: 16}}, nil)
	w.upgrades(cp1, w2)
	w.reports(w1)
	w.cordons(w1)
	w.drainFails(w1, 1) // and waits for five minutes
	var skip *answered
	w.env.RegisterDelayedCallback(func() { skip = w.steers(operation.UpdateSkipNode, operation.NodeRequest{Node: "w1"}) }, time.Minute)
	w.uncordons(w1)
	w.verifies(upgraded(cp1), w1, upgraded(w2))
	w.noISO(cp1)
	w.releases(clusterstate.Alert)

	w.env.ExecuteWorkflow(Upgrade, upgrade())

	kind, text := w.ended()
	require.Equal(t, operation.TypeFailed, kind, "a skip is no cancellation")
	require.Contains(t, text, "w1 was left out by the operator")
	require.Contains(t, skip.text, "w1 is given up and uncordoned")
	require.Equal(t, []string{"drain cp1", "drain w1", "drain w2"}, w.called("drain"))
	require.Equal(t, operation.PhaseSkipped, w.status().Nodes[1].Phase)
}

func TestOnlyAnUpgradeCanSkip(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Draining, clusterstate.Running, "", settingsOf(everyNode))
	w.cordons(w1)
	w.drainSettings()
	var skip *answered
	w.env.OnActivity(act.Drain, mock.Anything, drains(w1)).Return(func(context.Context, activities.DrainInput) (drain.Result, error) {
		skip = w.steers(operation.UpdateSkipNode, operation.NodeRequest{Node: "w1"})
		return drain.Result{DrainLeft: operation.DrainLeft{Node: "w1"}}, nil
	}).Once()
	w.releases(clusterstate.Running)
	w.env.ExecuteWorkflow(Drain, operation.DrainInput{Cluster: "prod", Nodes: []string{"w1"}})
	require.NoError(t, w.env.GetWorkflowError())
	require.Contains(t, skip.refused, "only an upgrade can leave a node out")
}
