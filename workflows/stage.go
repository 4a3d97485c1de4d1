package workflows

import (
	"cmp"
	"fmt"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"ebb/activities"
	"ebb/internal/operation"
)

// StageNode fetches what the upgrade of a node needs, before any node is drained. It is a
// workflow of the node's own, as what the script prints goes into its history: those of
// all nodes together would fill that of the operation.
func StageNode(ctx workflow.Context, in operation.StageNodeInput) (operation.StageNodeResult, error) {
	e, err := beginPart(ctx, in.UpgradeNodeInput, fmt.Sprintf("fetching %s on %s", in.Target, in.Node.Name))
	if err != nil {
		return operation.StageNodeResult{}, err
	}
	if in.ISO {
		e.mark(ctx, in.Node.Name, operation.PhaseStaging, 0, fmt.Sprintf("attaching the ISO of %s", in.Target))
		err = e.attachISO(ctx, in.Node, in.Target)
	}
	if err == nil {
		s := script{phase: activities.PhaseStage, shown: operation.PhaseStaging, target: in.Target, hop: in.Hop, retries: in.Retries}
		err = e.runScript(ctx, s, in.Node, in.Deadline)
	}
	return operation.StageNodeResult{}, typed(err)
}

// typed returns an error as the operation is told it: its text, and the type of the
// activity's error.
func typed(err error) error {
	if err == nil || temporal.IsCanceledError(err) {
		return err
	}
	return temporal.NewNonRetryableApplicationError(reason(err), cmp.Or(kindOf(err), operation.TypeScript), nil)
}
