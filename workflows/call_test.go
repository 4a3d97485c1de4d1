package workflows

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/drain"
	"ebb/internal/operation"
	"ebb/internal/policy"
)

// nobody is how an activity ends for which no worker was there in its whole time.
func nobody() error {
	return temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE, nil)
}

func (w *world) beginsUpgradeOf(n policy.Node) {
	w.claims(clusterstate.Upgrading, clusterstate.Running, target, settingsOf([]policy.Node{n}))
	w.fit(n)
	w.runs(activities.PhaseStage, n)
	w.drainSettings()
	w.reports(n)
	w.cordons(n)
	w.drainsWell(n)
}

func TestScriptThatEndedWhileNobodyWasThereIsASuccess(t *testing.T) {
	w := newWorld(t)
	w.beginsUpgradeOf(cp1)
	w.env.OnActivity(act.RunScript, mock.Anything, scriptOn(cp1, activities.PhaseUpgrade, 1)).Return(activities.ScriptResult{}, nobody()).Once()
	w.env.OnActivity(act.RunScript, mock.Anything, scriptOn(cp1, activities.PhaseUpgrade, 1)).Return(func(ctx context.Context, _ activities.ScriptInput) (activities.ScriptResult, error) {
		info := activity.GetInfo(ctx)
		w.note("look " + info.ScheduledTime.Add(info.ScheduleToCloseTimeout).String())
		return activities.ScriptResult{}, nil
	}).Once()
	w.completes(cp1)
	w.verifies(upgraded(cp1))
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(Upgrade, upgrade())

	require.NoError(t, w.env.GetWorkflowError())
	require.Len(t, w.called("look"), 1)
}

func TestWhatIsUnheardASecondTimeHasFailed(t *testing.T) {
	w := newWorld(t)
	w.beginsUpgradeOf(cp1)
	w.env.OnActivity(act.RunScript, mock.Anything, scriptOn(cp1, activities.PhaseUpgrade, 1)).Return(activities.ScriptResult{}, nobody()).Twice()
	w.uncordons(cp1)
	w.noISO(cp1)
	w.releases(clusterstate.Alert)

	w.env.ExecuteWorkflow(Upgrade, upgrade())

	kind, text := w.ended()
	require.Equal(t, operation.TypeFailed, kind)
	require.Contains(t, text, "RunScript did not end in time")
}

// A drain has no time left by then: its next attempt is another one, with a deadline of its own.
func TestDrainOfWhichNothingWasHeardIsTriedAsAnotherAttempt(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Draining, clusterstate.Running, "", settingsOf(everyNode))
	w.cordons(w1)
	w.drainSettings()
	var deadlines []time.Time
	attempt := func(err error) {
		w.env.OnActivity(act.Drain, mock.Anything, drains(w1)).Return(func(_ context.Context, in activities.DrainInput) (drain.Result, error) {
			deadlines = append(deadlines, in.Deadline)
			return drain.Result{DrainLeft: operation.DrainLeft{Node: "w1"}}, err
		}).Once()
	}
	attempt(nobody())
	attempt(nil)
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(Drain, operation.DrainInput{Cluster: "prod", Nodes: []string{"w1"}})

	require.NoError(t, w.env.GetWorkflowError())
	require.Equal(t, 30*time.Second, deadlines[1].Sub(deadlines[0]), "after the retry interval")
}
