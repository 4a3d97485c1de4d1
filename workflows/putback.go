package workflows

import (
	"errors"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"ebb/activities"
	"ebb/internal/operation"
	"ebb/internal/policy"
)

// detached is for what must be done even when the operation was cancelled or has
// failed: it does not hear the cancellation and is tried for a day, or until an operator
// gives up. From then on a call that is under way ends with its attempt, and each
// further one has apiCallTimeout.
func (e *execution) detached(ctx workflow.Context, summary string) workflow.Context {
	uncancelled, giveUp := workflow.NewDisconnectedContext(ctx)
	if e.control.givenUp {
		return with(uncancelled, summary, apiCallTimeout, apiCallTimeout, 0)
	}
	e.control.patient = append(e.control.patient, giveUp)
	return with(uncancelled, summary, apiCallTimeout, detachedFor, 0)
}

// uncordon takes back this operation's cordons on these nodes at once, whatever
// happened before: a node without one is left as it is.
func (e *execution) uncordon(ctx workflow.Context, nodes []policy.Node) (u operation.Uncordon) {
	results, errs := make([]activities.UncordonResult, len(nodes)), make([]error, len(nodes))
	parallel := 1
	if len(nodes) > 1 && workflow.GetVersion(ctx, "uncordon-at-once", workflow.DefaultVersion, 1) == 1 {
		parallel = len(nodes)
	}
	indexes := make([]int, len(nodes))
	for i := range nodes {
		indexes[i] = i
	}
	uncancelled, _ := workflow.NewDisconnectedContext(ctx)
	_ = each(uncancelled, indexes, parallel, func(ctx workflow.Context, i int) error {
		results[i], errs[i] = call(e.detached(ctx, "uncordon "+nodes[i].Name), act.Uncordon, e.on(nodes[i]))
		if results[i].Uncordoned {
			e.mark(ctx, nodes[i].Name, operation.PhaseRolledBack, 0, "")
		}
		return nil // the others are uncordoned all the same
	})
	for i, n := range nodes {
		switch {
		case errs[i] != nil:
			u.NotUncordoned = append(u.NotUncordoned, operation.NodeFault{Node: n.Name, Text: e.whyLeft(errs[i])})
		case results[i].Uncordoned:
			u.Uncordoned = append(u.Uncordoned, n.Name)
		}
	}
	return u
}

// putBack notes what the error of a node says of its cordon.
func (h *hop) putBack(err error) {
	var (
		failed   *temporal.ApplicationError
		canceled *temporal.CanceledError
		node     operation.NodeOutcome
		text     string
	)
	switch {
	case errors.As(err, &canceled) && canceled.HasDetails():
		err = canceled.Details(&text, &node)
	case errors.As(err, &failed) && failed.HasDetails():
		err = failed.Details(&node)
	}
	if err == nil && node.Uncordon != nil {
		h.back.Uncordoned = append(h.back.Uncordoned, node.Uncordoned...)
		h.back.NotUncordoned = append(h.back.NotUncordoned, node.NotUncordoned...)
	}
}

// whyLeft returns why something was not put back.
func (e *execution) whyLeft(err error) string {
	const givenUp = "given up, as the operation was cancelled again"
	switch {
	case !e.control.givenUp:
		return reason(err)
	case temporal.IsCanceledError(err):
		return givenUp
	}
	return givenUp + ": " + reason(err) // an attempt was under way, and failed
}

// hearGiveUp lets the operation of which this workflow is a part give up.
func (e *execution) hearGiveUp(ctx workflow.Context) {
	workflow.Go(ctx, func(ctx workflow.Context) {
		if workflow.GetSignalChannel(ctx, operation.SignalGiveUp).Receive(ctx, nil) {
			e.giveUp()
		}
	})
}

// giveUp ends the patience with which things are put back.
func (e *execution) giveUp() {
	e.control.givenUp = true
	for _, end := range e.control.patient {
		end()
	}
	e.control.patient = nil
}

// handleGiveUp answers the operator who cancels again: what cannot be put back now is
// left and named.
func (e *execution) handleGiveUp(ctx workflow.Context) (string, error) {
	e.giveUp()
	uncancelled, _ := workflow.NewDisconnectedContext(ctx)
	for _, n := range e.status.Nodes {
		if _, running := e.control.stop[n.Node]; running { // or it ends in this moment, and is not there any more
			_ = workflow.SignalExternalWorkflow(uncancelled, e.id+"/"+n.Node, "", operation.SignalGiveUp, nil).Get(uncancelled, nil)
		}
	}
	return "what cannot be put back now is left and named; what cannot be stopped is seen through", nil
}
