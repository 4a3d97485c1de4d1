package workflows

import (
	"fmt"

	"go.temporal.io/sdk/workflow"

	"ebb/internal/operation"
	"ebb/internal/policy"
)

// answerStatus answers the status query of an operation, and takes the output of scripts
// that is sent to it off its hands: it is for those who read the history.
func (e *execution) answerStatus(ctx workflow.Context) error {
	workflow.Go(ctx, func(ctx workflow.Context) {
		for output := workflow.GetSignalChannel(ctx, operation.SignalOutput); output.Receive(ctx, nil); {
		}
	})
	return workflow.SetQueryHandler(ctx, operation.QueryStatus, func() (operation.Status, error) { return e.status, nil })
}

func (e *execution) step(ctx workflow.Context, format string, args ...any) {
	e.status.Step = fmt.Sprintf(format, args...)
	e.show(ctx)
}

// show puts the status where the Web UI shows it.
func (e *execution) show(ctx workflow.Context) {
	workflow.SetCurrentDetails(ctx, e.status.Markdown())
}

// follow makes these nodes the ones that the status shows.
func (e *execution) follow(ctx workflow.Context, nodes []policy.Node) {
	e.status.Nodes = make([]operation.NodeStatus, len(nodes))
	for i, n := range nodes {
		e.status.Nodes[i] = operation.NodeStatus{Node: n.Name, Role: n.Role, Phase: operation.PhasePending}
	}
	e.show(ctx)
}

// mark sets a node's place in the operation.
func (e *execution) mark(ctx workflow.Context, node string, phase operation.Phase, attempt int, detail string) {
	for i := range e.status.Nodes {
		if e.status.Nodes[i].Node == node {
			n := &e.status.Nodes[i]
			n.Phase, n.Attempt, n.Detail = phase, attempt, detail
		}
	}
	e.show(ctx)
}
