package workflows

import (
	"strings"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/operation"
)

// Reconcile takes a cluster in Alert back to Running when nothing is wrong with
// it any more. A Temporal Schedule starts it every minute while a cluster is in
// Alert. It takes the cluster like an operation does, looks once more while it
// has it, and gives it back; a cluster in any other state it leaves alone.
func Reconcile(ctx workflow.Context, in operation.ReconcileInput) (operation.ReconcileResult, error) {
	// 1. Look, without touching anything.
	found, err := diagnose(ctx, in.Cluster)
	if err != nil {
		return operation.ReconcileResult{}, pauseSchedule(ctx, in.Cluster, err)
	}
	if found.State != clusterstate.Alert && found.State != clusterstate.Recovering {
		return operation.ReconcileResult{State: found.State}, pauseSchedule(ctx, in.Cluster, nil)
	}
	if len(found.Faults) > 0 && found.State == clusterstate.Alert {
		return show(ctx, operation.ReconcileResult{State: found.State, Faults: found.Faults}), nil
	}
	// 2. Take the cluster; an operation that was faster has it now.
	e := &execution{id: workflow.GetInfo(ctx).WorkflowExecution.ID, cluster: in.Cluster}
	if _, err := call(onAPI(ctx, "take cluster "+in.Cluster), act.Claim, activities.ClaimInput{
		Cluster: in.Cluster, Operation: e.id, State: clusterstate.Recovering,
	}); err != nil {
		if kindOf(err) == operation.TypeRefused {
			return show(ctx, operation.ReconcileResult{State: found.State, Faults: []string{reason(err)}}), nil
		}
		e.release(ctx, clusterstate.Alert, "", "") // it may have been taken all the same
		return operation.ReconcileResult{}, err
	}
	e.from = clusterstate.Alert
	// 3. Look again: nobody else changes it now.
	found, err = diagnose(ctx, in.Cluster)
	to, reached := clusterstate.Running, found.Version
	if err != nil || len(found.Faults) > 0 {
		to, reached = clusterstate.Alert, "" // the upgrade that failed is not complete
	}
	// 4. Give it back.
	if lock, fault := e.release(ctx, to, "", reached); lock != operation.LockReleased {
		o := operation.Outcome{Operation: e.id, Cluster: in.Cluster, Reason: operation.TypeFailed, State: to, Lock: lock, LockFault: fault}
		return operation.ReconcileResult{}, temporal.NewNonRetryableApplicationError(o.LockText(), operation.TypeFailed, nil, o)
	}
	return show(ctx, operation.ReconcileResult{State: to, Faults: found.Faults}), err
}

func diagnose(ctx workflow.Context, cluster string) (activities.Diagnosis, error) {
	return call(onAPI(ctx, "look at cluster "+cluster), act.Diagnose, activities.DiagnoseInput{Cluster: cluster})
}

// pauseSchedule pauses the schedule of a cluster with which there is nothing to do: it is
// not in Alert, or it is not configured any more. cause is what it ends with.
func pauseSchedule(ctx workflow.Context, cluster string, cause error) error {
	if cause != nil && kindOf(cause) != operation.TypeConfig {
		return cause
	}
	_, err := call(onAPI(ctx, "pause the reconciler of "+cluster), act.Rest, activities.RestInput{Cluster: cluster})
	if cause != nil {
		return cause
	}
	return err
}

// show puts the outcome where the Web UI shows it.
func show(ctx workflow.Context, r operation.ReconcileResult) operation.ReconcileResult {
	text := "the cluster is in state " + string(r.State)
	if len(r.Faults) > 0 {
		text += ": " + strings.Join(r.Faults, "; ")
	}
	workflow.SetCurrentDetails(ctx, text+"\n")
	return r
}
