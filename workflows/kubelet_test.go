package workflows

import (
	"context"
	"testing"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/operation"
	"ebb/internal/policy"
)

func (w *world) kubeletIsAt(n policy.Node) {
	w.env.OnActivity(act.CheckVersion, mock.Anything, activities.CheckVersionInput{Cluster: "prod", Node: n, Version: target}).
		Return(activities.CheckVersionResult{}, nil).Once()
}

func TestNodeWhoseKubeletDoesNotLiveIsNotUncordoned(t *testing.T) {
	w := newWorld(t)
	w.beginsUpgradeOf(cp1)
	w.runs(activities.PhaseUpgrade, cp1)
	w.kubeletIsAt(cp1)
	w.env.OnActivity(act.WaitReady, mock.Anything, awaitsReady(cp1, 0)).
		Return(activities.WaitReadyResult{}, fails(operation.TypeNotReady, "node cp1 is not Ready: unknown flag: --pod-infra-container-image")).Once()
	w.env.OnActivity(act.LeaveCordoned, mock.Anything, leftAt(cp1)).Return(activities.UnfinishedResult{Ours: true}, nil).Once()
	w.noISO(cp1)
	w.releases(clusterstate.Alert)

	w.env.ExecuteWorkflow(Upgrade, upgrade())

	kind, text := w.ended()
	require.Equal(t, operation.TypeFailed, kind)
	require.Contains(t, text, "unknown flag: --pod-infra-container-image")
	require.Contains(t, text, "could not uncordon cp1 (its kubelet does not live; the upgrade that is started again uncordons it)")
}

func leftAt(n policy.Node) activities.LeaveCordonedInput {
	return activities.LeaveCordonedInput{NodeInput: on(n), Version: target}
}

// Nobody could see whether the node was Ready, and it was.
func TestNodeThatWasOnlyNotSeenToBeReadyIsUncordoned(t *testing.T) {
	w := newWorld(t)
	w.beginsUpgradeOf(cp1)
	w.runs(activities.PhaseUpgrade, cp1)
	w.kubeletIsAt(cp1)
	w.env.OnActivity(act.WaitReady, mock.Anything, awaitsReady(cp1, 0)).
		Return(activities.WaitReadyResult{}, fails(operation.TypeConfig, "nodes is forbidden")).Once()
	w.env.OnActivity(act.LeaveCordoned, mock.Anything, leftAt(cp1)).Return(activities.UnfinishedResult{Lives: true}, nil).Once()
	w.uncordons(cp1)
	w.noISO(cp1)
	w.releases(clusterstate.Alert)

	w.env.ExecuteWorkflow(Upgrade, upgrade())

	kind, text := w.ended()
	require.Equal(t, operation.TypeFailed, kind)
	require.Contains(t, text, "nodes is forbidden")
	require.Contains(t, text, "uncordoned cp1")
}

// left is a node as such an upgrade leaves it.
func left(n policy.Node, ready bool) policy.Node {
	n.Ready, n.Unschedulable, n.CordonedBy, n.Unfinished = ready, true, "op-0", true
	return n
}

func (w *world) takesOver(n policy.Node) {
	w.env.OnActivity(act.TakeCordonOver, mock.Anything, on(n)).Return(func(context.Context, activities.NodeInput) (activities.UnfinishedResult, error) {
		w.note("take over " + n.Name)
		return activities.UnfinishedResult{Ours: true}, nil
	}).Once()
}

func TestRetryAtAKubeletThatDoesNotLiveDrainsNothing(t *testing.T) {
	w := newWorld(t)
	dead := left(w1, false)
	nodes := []policy.Node{upgraded(cp1), dead}
	w.claims(clusterstate.Upgrading, clusterstate.Alert, target, settingsOf(nodes))
	w.fit(dead)
	w.runs(activities.PhaseStage, dead)
	w.reports(upgraded(cp1), dead)
	w.takesOver(dead)
	w.cordons(dead)
	w.runs(activities.PhaseUpgrade, dead)
	w.completes(dead)
	w.verifies(upgraded(cp1), upgraded(w1))
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(Upgrade, upgrade())

	require.NoError(t, w.env.GetWorkflowError())
	require.Equal(t, []string{"take over w1", "cordon w1", "upgrade w1", "lives w1", "uncordon w1", "ready w1", "record w1", "release Running"}, w.calls[1:])
}

func TestRetryThatDoesNotComeToTheKubeletLeavesTheCordon(t *testing.T) {
	w := newWorld(t)
	dead := left(w1, false)
	nodes := []policy.Node{upgraded(cp1), dead}
	w.claims(clusterstate.Upgrading, clusterstate.Alert, target, settingsOf(nodes))
	w.fit(dead)
	w.runs(activities.PhaseStage, dead)
	w.reports(upgraded(cp1), dead)
	w.takesOver(dead)
	w.cordons(dead)
	w.env.OnActivity(act.RunScript, mock.Anything, scriptOn(dead, activities.PhaseUpgrade, 1)).
		Return(activities.ScriptResult{}, fails(operation.TypeScript, "exit status 1")).Once()
	w.env.OnActivity(act.LeaveCordoned, mock.Anything, leftAt(w1)).Return(activities.UnfinishedResult{Ours: true}, nil).Once()
	w.noISO(upgraded(cp1))
	w.releases(clusterstate.Alert)

	w.env.ExecuteWorkflow(Upgrade, upgrade())

	_, text := w.ended()
	require.Contains(t, text, "could not uncordon w1")
}

func TestRetryAtAKubeletThatLivesAgainDrains(t *testing.T) {
	w := newWorld(t)
	mended := left(w1, true)
	nodes := []policy.Node{upgraded(cp1), mended}
	w.claims(clusterstate.Upgrading, clusterstate.Alert, target, settingsOf(nodes))
	w.fit(mended)
	w.runs(activities.PhaseStage, mended)
	w.reports(upgraded(cp1), mended)
	w.takesOver(mended)
	w.cordons(mended)
	w.drainSettings()
	w.drainsWell(mended)
	w.runs(activities.PhaseUpgrade, mended)
	w.completes(mended)
	w.verifies(upgraded(cp1), upgraded(w1))
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(Upgrade, upgrade())

	require.NoError(t, w.env.GetWorkflowError())
}
