package workers

import (
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"ebb/activities"
	"ebb/internal/operation"
	"ebb/workflows"
)

// registered are the workflows by the type they have in histories.
var registered = []struct {
	name string
	run  any
}{
	{string(operation.KindDrain), workflows.Drain},
	{string(operation.KindScaleDown), workflows.ScaleDown},
	{string(operation.KindUpgrade), workflows.Upgrade},
	{string(operation.KindUncordon), workflows.Uncordon},
	{operation.WorkflowUpgradeNode, workflows.UpgradeNode},
	{operation.WorkflowStageNode, workflows.StageNode},
	{operation.WorkflowReconcile, workflows.Reconcile},
}

// WorkflowTypes returns the types of the workflows that a worker runs.
func WorkflowTypes() []string {
	types := make([]string, len(registered))
	for i, w := range registered {
		types[i] = w.name
	}
	return types
}

// RegisterWorkflows registers every workflow, with a worker or a replayer.
func RegisterWorkflows(r worker.WorkflowRegistry) {
	for _, w := range registered {
		r.RegisterWorkflowWithOptions(w.run, workflow.RegisterOptions{Name: w.name})
	}
}

func registerActivities(r worker.ActivityRegistry, a *activities.Activities) { r.RegisterActivity(a) }
