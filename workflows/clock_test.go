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

func TestScriptHasItsWholeTimeAfterASlowDrain(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Upgrading, clusterstate.Running, target, settingsOf([]policy.Node{cp1}))
	w.fit(cp1)
	w.runs(activities.PhaseStage, cp1)
	w.drainSettings()
	w.reports(cp1)
	w.cordons(cp1)
	w.env.OnActivity(act.Drain, mock.Anything, drains(cp1)).After(29*time.Minute).Return(drain.Result{DrainLeft: operation.DrainLeft{Node: "cp1"}}, nil).Once()
	var left time.Duration
	w.env.OnActivity(act.RunScript, mock.Anything, scriptOn(cp1, activities.PhaseUpgrade, 1)).Return(func(_ context.Context, in activities.ScriptInput) (activities.ScriptResult, error) {
		left = in.Deadline.Sub(w.env.Now())
		return activities.ScriptResult{}, nil
	}).Once()
	w.completes(cp1)
	w.verifies(upgraded(cp1))
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(Upgrade, upgrade())

	require.NoError(t, w.env.GetWorkflowError())
	require.Equal(t, 30*time.Minute, left.Round(time.Second))
}

func TestNodeIsNotDrainedWithoutTimeForItsScript(t *testing.T) {
	w := newWorld(t)
	survey := settingsOf([]policy.Node{cp1, w1})
	survey.Upgrade.Timeout = 50 * time.Minute // two scripts of 30 minutes do not fit
	w.claims(clusterstate.Upgrading, clusterstate.Running, target, survey)
	w.fit(cp1, w1)
	w.runs(activities.PhaseStage, cp1, w1)
	w.drainSettings()
	w.reports(cp1)
	w.cordons(cp1)
	w.drainsWell(cp1)
	w.env.OnActivity(act.RunScript, mock.Anything, scriptOn(cp1, activities.PhaseUpgrade, 1)).After(25*time.Minute).Return(activities.ScriptResult{}, nil).Once()
	w.completes(cp1)
	w.noISO(cp1)
	w.releases(clusterstate.Alert)

	w.env.ExecuteWorkflow(Upgrade, upgrade())

	kind, text := w.ended()
	require.Equal(t, operation.TypeFailed, kind)
	require.Contains(t, text, "node w1 was not started: there is no time for its script (30m0s) before the deadline")
	require.Equal(t, []string{"cordon cp1"}, w.called("cordon"))
}
