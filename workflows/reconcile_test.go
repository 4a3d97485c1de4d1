package workflows

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/operation"
)

func (w *world) diagnoses(d activities.Diagnosis) {
	w.env.OnActivity(act.Diagnose, mock.Anything, activities.DiagnoseInput{Cluster: "prod"}).Return(d, nil).Once()
}

func (w *world) takesForRecovery(result activities.ClaimResult, err error) {
	w.env.OnActivity(act.Claim, mock.Anything, activities.ClaimInput{Cluster: "prod", Operation: op, State: clusterstate.Recovering}).Return(result, err).Once()
}

func (w *world) reconciled() operation.ReconcileResult {
	w.t.Helper()
	var result operation.ReconcileResult
	require.NoError(w.t, w.env.GetWorkflowResult(&result))
	return result
}

func TestReconcileBringsAWholeClusterBack(t *testing.T) {
	w := newWorld(t)
	w.diagnoses(activities.Diagnosis{State: clusterstate.Alert})
	w.takesForRecovery(activities.ClaimResult{From: clusterstate.Alert}, nil)
	w.diagnoses(activities.Diagnosis{State: clusterstate.Recovering, Version: target})
	w.env.OnActivity(act.Release, mock.Anything, activities.ReleaseInput{Cluster: "prod", Operation: op, State: clusterstate.Running, Version: target}).
		Return(activities.ReleaseResult{Held: true}, nil).Once()
	w.env.ExecuteWorkflow(Reconcile, operation.ReconcileInput{Cluster: "prod"})
	require.Equal(t, operation.ReconcileResult{State: clusterstate.Running}, w.reconciled())
}

func TestReconcileLeavesASickClusterInAlert(t *testing.T) {
	w := newWorld(t)
	w.diagnoses(activities.Diagnosis{State: clusterstate.Alert, Faults: []string{"node w1 is not Ready"}})
	w.env.ExecuteWorkflow(Reconcile, operation.ReconcileInput{Cluster: "prod"})
	require.Equal(t, operation.ReconcileResult{State: clusterstate.Alert, Faults: []string{"node w1 is not Ready"}}, w.reconciled())
}

func TestReconcileGoesBackToAlertWhenTheSecondLookIsWorse(t *testing.T) {
	w := newWorld(t)
	w.diagnoses(activities.Diagnosis{State: clusterstate.Alert})
	w.takesForRecovery(activities.ClaimResult{From: clusterstate.Alert}, nil)
	w.diagnoses(activities.Diagnosis{State: clusterstate.Recovering, Faults: []string{"node w1 is not Ready"}})
	w.releases(clusterstate.Alert)
	w.env.ExecuteWorkflow(Reconcile, operation.ReconcileInput{Cluster: "prod"})
	require.Equal(t, clusterstate.Alert, w.reconciled().State)
}

func TestReconcileStopsWhenAnOperationWasFaster(t *testing.T) {
	w := newWorld(t)
	w.diagnoses(activities.Diagnosis{State: clusterstate.Alert})
	w.takesForRecovery(activities.ClaimResult{}, fails(operation.TypeRefused, "held by up-2"))
	w.env.ExecuteWorkflow(Reconcile, operation.ReconcileInput{Cluster: "prod"})
	require.Equal(t, operation.ReconcileResult{State: clusterstate.Alert, Faults: []string{"held by up-2"}}, w.reconciled())
}

func TestReconcileRestsWhenThereIsNothingToDo(t *testing.T) {
	for _, state := range []clusterstate.State{clusterstate.Running, clusterstate.Upgrading, clusterstate.Scaling, clusterstate.Draining} {
		w := newWorld(t)
		w.diagnoses(activities.Diagnosis{State: state, Faults: []string{"node w1 bears the cordon of up-1"}})
		w.env.OnActivity(act.Rest, mock.Anything, activities.RestInput{Cluster: "prod"}).Return(activities.RestResult{Resting: true}, nil).Once()
		w.env.ExecuteWorkflow(Reconcile, operation.ReconcileInput{Cluster: "prod"})
		require.Equal(t, operation.ReconcileResult{State: state}, w.reconciled())
	}
}

func TestReconcileOfAForgottenClusterRests(t *testing.T) {
	w := newWorld(t)
	w.env.OnActivity(act.Diagnose, mock.Anything, mock.Anything).Return(activities.Diagnosis{}, fails(operation.TypeConfig, `there is no cluster "prod"`)).Once()
	w.env.OnActivity(act.Rest, mock.Anything, mock.Anything).Return(activities.RestResult{Resting: true}, nil).Once()
	w.env.ExecuteWorkflow(Reconcile, operation.ReconcileInput{Cluster: "prod"})
	kind, _ := w.ended()
	require.Equal(t, operation.TypeConfig, kind)
}

func TestReconcileWhoseClaimWasNotAnsweredGivesTheClusterBack(t *testing.T) {
	w := newWorld(t)
	w.diagnoses(activities.Diagnosis{State: clusterstate.Alert})
	w.takesForRecovery(activities.ClaimResult{}, temporal.NewNonRetryableApplicationError("no answer", "", errors.New("connection reset")))
	w.releases(clusterstate.Alert)
	w.env.ExecuteWorkflow(Reconcile, operation.ReconcileInput{Cluster: "prod"})
	_, text := w.ended()
	require.Contains(t, text, "no answer")
}

func TestReconcileThatCannotGiveTheClusterBackSaysSo(t *testing.T) {
	w := newWorld(t)
	w.diagnoses(activities.Diagnosis{State: clusterstate.Alert})
	w.takesForRecovery(activities.ClaimResult{From: clusterstate.Alert}, nil)
	w.diagnoses(activities.Diagnosis{State: clusterstate.Recovering})
	w.env.OnActivity(act.Release, mock.Anything, mock.Anything).Return(activities.ReleaseResult{}, fails(operation.TypeConfig, "leases is forbidden")).Once()
	w.env.ExecuteWorkflow(Reconcile, operation.ReconcileInput{Cluster: "prod"})
	kind, text := w.ended()
	require.Equal(t, operation.TypeFailed, kind)
	require.Equal(t, "the lock could not be released: leases is forbidden", text)
}

// failsInRemoval is a scale-down of w2 that ends in Alert, with the release answered so.
func failsInRemoval(t *testing.T, released activities.ReleaseResult) *world {
	t.Helper()
	w := newWorld(t)
	w.claims(clusterstate.Scaling, clusterstate.Running, "", settingsOf(everyNode))
	w.machinesAre(false, w2)
	w.roomFor(w2)
	w.cordons(w2)
	w.drainSettings()
	w.drainsWell(w2)
	w.env.OnActivity(act.DeleteNode, mock.Anything, machine(w2)).Return(activities.DeleteNodeResult{}, fails(operation.TypeConfig, "nodes is forbidden")).Once()
	w.uncordons(w2)
	w.env.OnActivity(act.Release, mock.Anything, mock.Anything).Return(released, nil).Once()
	return w
}

func TestReconcilerThatCouldNotBeResumedIsTriedAgain(t *testing.T) {
	w := failsInRemoval(t, activities.ReleaseResult{Held: true, Unattended: true})
	tries := 0
	w.env.OnActivity(act.Attend, mock.Anything, activities.AttendInput{Cluster: "prod"}).Return(func(context.Context, activities.AttendInput) (activities.AttendResult, error) {
		if tries++; tries < 3 {
			return activities.AttendResult{}, errors.New("the engine is away")
		}
		return activities.AttendResult{}, nil
	})
	w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Nodes: []string{"w2"}})
	_, text := w.ended()
	require.Equal(t, 3, tries)
	require.NotContains(t, text, "reconciler")
}

func TestReconcilerThatCannotBeResumedIsTold(t *testing.T) {
	w := failsInRemoval(t, activities.ReleaseResult{Held: true, Unattended: true})
	w.env.OnActivity(act.Attend, mock.Anything, mock.Anything).Return(activities.AttendResult{}, fails("", "permission denied")).Once()
	w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Nodes: []string{"w2"}})
	_, text := w.ended()
	require.Contains(t, text, "the cluster is in state Alert; the reconciler could not be resumed")
	require.Contains(t, text, "permission denied; cause: nodes is forbidden")
	require.Contains(t, w.status().Warning, "permission denied")
}
