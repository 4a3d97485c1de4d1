package workflows

import (
	"context"
	"testing"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/drain"
	"ebb/internal/operation"
	"ebb/internal/policy"
	"ebb/internal/version"
)

// withISO are the settings of a cluster whose script needs an ISO.
func withISO(nodes []policy.Node) activities.Survey {
	survey := settingsOf(nodes)
	survey.Upgrade.ISO = true
	return survey
}

// attaches expects the ISO of the target to be attached to machines, to each so many times.
func (w *world) attaches(times int, nodes ...policy.Node) {
	for _, n := range nodes {
		w.env.OnActivity(act.AttachISO, mock.Anything, activities.AttachISOInput{Cluster: "prod", Node: n, Version: target}).
			Return(func(context.Context, activities.AttachISOInput) (activities.AttachISOResult, error) {
				w.note("attach " + n.Name)
				return activities.AttachISOResult{}, nil
			}).Times(times)
	}
}

// detaches expects it to be detached once, which fails with an error or nil.
func (w *world) detaches(v version.Version, err error, nodes ...policy.Node) {
	for _, n := range nodes {
		w.env.OnActivity(act.DetachISO, mock.Anything, activities.DetachISOInput{Cluster: "prod", Node: n, Version: v}).
			Return(func(context.Context, activities.DetachISOInput) (activities.DetachISOResult, error) {
				w.note("detach " + n.Name)
				return activities.DetachISOResult{Detached: err == nil}, err
			}).Once()
	}
}

func TestISOIsAttachedForEachNodeAndDetached(t *testing.T) {
	w := newWorld(t)
	nodes := []policy.Node{cp1, w1}
	w.claims(clusterstate.Upgrading, clusterstate.Running, target, withISO(nodes))
	w.fit(nodes...)
	w.attaches(2, nodes...)
	w.runs(activities.PhaseStage, nodes...)
	w.drainSettings()
	w.upgrades(nodes...)
	w.detaches(target, nil, cp1)
	w.detaches(target, fails(operation.TypeConfig, "the keys are not accepted"), w1)
	w.verifies(upgraded(cp1), upgraded(w1))
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(Upgrade, upgrade())

	var result operation.UpgradeResult
	require.NoError(t, w.env.GetWorkflowResult(&result))
	require.Equal(t, []string{"the ISO is still attached to the machine of w1: the keys are not accepted"}, result.Warnings)
	require.ElementsMatch(t, []string{"attach cp1", "attach w1", "stage cp1", "stage w1"}, w.calls[:4])
	require.Equal(t, []string{"attach cp1", "cordon cp1", "upgrade cp1", "record cp1", "detach cp1", "attach w1", "cordon w1", "upgrade w1", "record w1", "detach w1"},
		w.called("attach", "cordon", "upgrade", "record", "detach")[2:])
}

// A script that fails, an ISO that cannot be attached and a cancellation: no ISO is left.
func TestISOIsDetachedWhateverHappens(t *testing.T) {
	nodes := []policy.Node{cp1, w1, w2}
	begin := func(t *testing.T) *world {
		t.Helper()
		w := newWorld(t)
		w.claims(clusterstate.Upgrading, clusterstate.Running, target, withISO(nodes))
		w.fit(nodes...)
		return w
	}
	t.Run("the script fails", func(t *testing.T) {
		w := begin(t)
		w.attaches(2, cp1)
		w.attaches(1, w1, w2)
		w.runs(activities.PhaseStage, nodes...)
		w.drainSettings()
		w.reports(cp1)
		w.cordons(cp1)
		w.drainsWell(cp1)
		w.env.OnActivity(act.RunScript, mock.Anything, scriptOn(cp1, activities.PhaseUpgrade, 1)).
			Return(activities.ScriptResult{}, fails(operation.TypeScript, "exit status 1")).Once()
		w.uncordons(cp1)
		w.detaches(target, nil, cp1) // by its own workflow
		w.detaches(target, nil, cp1) // by the operation, which trusts no node that has failed
		w.detaches(target, fails(operation.TypeConfig, "it is locked"), w1)
		w.detaches(target, nil, w2)
		w.releases(clusterstate.Alert)
		w.env.ExecuteWorkflow(Upgrade, upgrade())
		kind, text := w.ended()
		require.Equal(t, operation.TypeFailed, kind)
		require.Contains(t, text, "; the ISO is still attached to the machine of w1: it is locked; ")
		require.Len(t, w.called("detach"), 4)
		require.Equal(t, "release Alert", w.calls[len(w.calls)-1])
	})
	t.Run("it cannot be attached", func(t *testing.T) {
		w := begin(t)
		w.attaches(1, cp1, w1)
		w.env.OnActivity(act.AttachISO, mock.Anything, activities.AttachISOInput{Cluster: "prod", Node: w2, Version: target}).
			Return(activities.AttachISOResult{}, fails(operation.TypeConfig, "VM w2 has another ISO attached")).Once()
		w.env.OnActivity(act.RunScript, mock.Anything, mock.Anything).Return(activities.ScriptResult{}, nil).Maybe()
		w.detaches(target, nil, nodes...)
		w.releases(clusterstate.Running)
		w.env.ExecuteWorkflow(Upgrade, upgrade())
		kind, text := w.ended()
		require.Equal(t, operation.TypeRolledBack, kind)
		require.Contains(t, text, "no node was touched; the cluster is in state Running; cause: VM w2 has another ISO attached")
		require.Empty(t, w.called("cordon"))
	})
	t.Run("it cannot be attached once more", func(t *testing.T) {
		w := begin(t)
		w.attaches(1, w1, w2)
		tries := 0
		w.env.OnActivity(act.AttachISO, mock.Anything, activities.AttachISOInput{Cluster: "prod", Node: cp1, Version: target}).
			Return(func(context.Context, activities.AttachISOInput) (activities.AttachISOResult, error) {
				if tries++; tries == 1 {
					return activities.AttachISOResult{}, nil
				}
				return activities.AttachISOResult{}, fails(operation.TypeConfig, "VM cp1 has another ISO attached")
			}).Twice()
		w.runs(activities.PhaseStage, nodes...)
		w.reports(cp1)
		w.detaches(target, nil, cp1)
		w.detaches(target, nil, nodes...)
		w.releases(clusterstate.Alert)
		w.env.ExecuteWorkflow(Upgrade, upgrade())
		kind, text := w.ended()
		require.Equal(t, operation.TypeFailed, kind)
		require.Contains(t, text, "node cp1 (machine m-cp1), step ISO: VM cp1 has another ISO attached")
		require.Empty(t, w.called("cordon"))
	})
	t.Run("it is cancelled", func(t *testing.T) {
		w := begin(t)
		w.env.OnActivity(act.AttachISO, mock.Anything, mock.Anything).Return(func(context.Context, activities.AttachISOInput) (activities.AttachISOResult, error) {
			return activities.AttachISOResult{}, w.cancelDuring("attach")
		})
		w.detaches(target, nil, nodes...)
		w.releases(clusterstate.Running)
		w.env.ExecuteWorkflow(Upgrade, upgrade())
		require.True(t, w.env.IsWorkflowCompleted())
		require.Error(t, w.env.GetWorkflowError())
		require.Len(t, w.called("detach"), 3, "it is not known which of them has it")
	})
}

// A worker that an operator has left out was staged, and its own workflow never begins.
func TestISOOfANodeThatIsLeftOutIsDetached(t *testing.T) {
	w := newWorld(t)
	nodes := []policy.Node{cp1, w1}
	w.claims(clusterstate.Upgrading, clusterstate.Running, target, withISO(nodes))
	w.fit(nodes...)
	w.attaches(2, cp1)
	w.attaches(1, w1)
	w.runs(activities.PhaseStage, nodes...)
	w.drainSettings()
	w.reports(cp1)
	w.cordons(cp1)
	w.env.OnActivity(act.Drain, mock.Anything, drains(cp1)).Return(func(context.Context, activities.DrainInput) (drain.Result, error) {
		w.steers(operation.UpdateSkipNode, operation.NodeRequest{Node: "w1"})
		return drain.Result{DrainLeft: operation.DrainLeft{Node: "cp1"}}, nil
	}).Once()
	w.runs(activities.PhaseUpgrade, cp1)
	w.completes(cp1)
	w.detaches(target, nil, cp1)
	w.detaches(target, fails(operation.TypeConfig, "it is locked"), w1)
	manual := w1
	manual.Manual = true
	w.verifies(upgraded(cp1), manual)
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(Upgrade, upgrade())

	var result operation.UpgradeResult
	require.NoError(t, w.env.GetWorkflowResult(&result))
	require.Equal(t, []string{"detach cp1", "detach w1"}, w.called("detach"))
	require.Equal(t, []string{"the ISO is still attached to the machine of w1: it is locked"}, result.Warnings)
}

// Each hop has an ISO of its own.
func TestEachHopHasAnISOOfItsOwn(t *testing.T) {
	w := newWorld(t)
	w.claimsHops(target, clusterstate.Running, withISO([]policy.Node{cp1}))
	w.fit(cp1, upgraded(cp1))
	w.attaches(2, cp1)
	w.runs(activities.PhaseStage, cp1)
	w.drainSettings()
	w.upgrades(cp1)
	w.detaches(target, nil, cp1)
	w.verifies(upgraded(cp1))
	w.advances()
	w.env.OnActivity(act.Survey, mock.Anything, mock.Anything).Return(withISO([]policy.Node{upgraded(cp1)}), nil).Once()
	w.env.OnActivity(act.AttachISO, mock.Anything, activities.AttachISOInput{Cluster: "prod", Node: upgraded(cp1), Version: "1.38.1"}).
		Return(activities.AttachISOResult{}, fails(operation.TypeConfig, "there is no such version")).Once()
	w.detaches("1.38.1", nil, upgraded(cp1))
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(Upgrade, inHops())

	kind, text := w.ended()
	require.Equal(t, operation.TypeFailed, kind)
	require.Contains(t, text, "every node is at 1.37.2, the step to 1.38.1 was not begun")
	require.Contains(t, text, "there is no such version")
}
