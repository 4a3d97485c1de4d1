package workflows

import (
	"strings"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"ebb/activities"
	"ebb/internal/clusterstate"
)

// TypeReconcile is the workflow type of Reconcile.
const TypeReconcile = "Reconcile"

// ReconcileInput names the cluster to look after.
type ReconcileInput struct {
	Cluster string `json:"cluster"`
}

// ReconcileResult is how the cluster was found, or left.
type ReconcileResult struct {
	State  clusterstate.State `json:"state"`
	Faults []string           `json:"faults,omitempty"` // what keeps it in Alert
}

// Reconcile takes a cluster in Alert back to Running when nothing is wrong with
// it any more. A Temporal Schedule starts it every minute while a cluster is in
// Alert. It takes the cluster like an operation does, looks once more while it
// has it, and gives it back; a cluster in any other state it leaves alone.
func Reconcile(ctx workflow.Context, in ReconcileInput) (ReconcileResult, error) {
	// 1. Look, without touching anything.
	found, err := diagnose(ctx, in.Cluster)
	if err != nil {
		return ReconcileResult{}, rest(ctx, in.Cluster, err)
	}
	if found.State != clusterstate.Alert && found.State != clusterstate.Recovering {
		return ReconcileResult{State: found.State}, rest(ctx, in.Cluster, nil)
	}
	if len(found.Faults) > 0 && found.State == clusterstate.Alert {
		return say(ctx, ReconcileResult{State: found.State, Faults: found.Faults}), nil
	}
	// 2. Take the cluster; an operation that was faster has it now.
	o := &operation{id: workflow.GetInfo(ctx).WorkflowExecution.ID, cluster: in.Cluster}
	if _, err := call(onAPI(ctx, "take cluster "+in.Cluster), act.Claim, activities.ClaimInput{
		Cluster: in.Cluster, Operation: o.id, State: clusterstate.Recovering,
	}); err != nil {
		if kindOf(err) == activities.TypeRefused {
			return say(ctx, ReconcileResult{State: found.State, Faults: []string{reason(err)}}), nil
		}
		o.release(ctx, clusterstate.Alert, "", "") // it may have been taken all the same
		return ReconcileResult{}, err
	}
	o.from = clusterstate.Alert
	// 3. Look again: nobody else changes it now.
	found, err = diagnose(ctx, in.Cluster)
	to, version := clusterstate.Running, found.Version
	if err != nil || len(found.Faults) > 0 {
		to, version = clusterstate.Alert, "" // the upgrade that failed is not complete
	}
	// 4. Give it back.
	if problem := o.release(ctx, to, "", version); problem != "" {
		return ReconcileResult{}, temporal.NewNonRetryableApplicationError(problem, ErrFailed, nil)
	}
	return say(ctx, ReconcileResult{State: to, Faults: found.Faults}), err
}

func diagnose(ctx workflow.Context, cluster string) (activities.Diagnosis, error) {
	return call(onAPI(ctx, "look at cluster "+cluster), act.Diagnose, activities.DiagnoseInput{Cluster: cluster})
}

// rest pauses the schedule of a cluster with which there is nothing to do: it is
// not in Alert, or it is not configured any more. cause is what it ends with.
func rest(ctx workflow.Context, cluster string, cause error) error {
	if cause != nil && kindOf(cause) != activities.TypeConfig {
		return cause
	}
	_, err := call(onAPI(ctx, "pause the reconciler of "+cluster), act.Rest, activities.RestInput{Cluster: cluster})
	if cause != nil {
		return cause
	}
	return err
}

// say puts the outcome where the Web UI shows it.
func say(ctx workflow.Context, r ReconcileResult) ReconcileResult {
	text := "the cluster is in state " + string(r.State)
	if len(r.Faults) > 0 {
		text += ": " + strings.Join(r.Faults, "; ")
	}
	workflow.SetCurrentDetails(ctx, text+"\n")
	return r
}
