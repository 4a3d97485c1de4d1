package workflows

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"ebb/internal/operation"
	"ebb/internal/policy"
)

// control is how an operation is steered.
type control struct {
	pausedAt time.Time                      // zero = not paused
	skipped  map[string]bool                // nodes an operator leaves out
	stop     map[string]workflow.CancelFunc // ends the work on a node, while it runs in a child workflow
	waits    map[string]workflow.CancelFunc // ends the wait of a node for its next attempt

	cancelled func() bool           // reports whether the operation was cancelled
	givenUp   bool                  // what cannot be put back at once is left
	patient   []workflow.CancelFunc // end what is tried for a day
}

func newControl(ctx workflow.Context) control {
	return control{cancelled: func() bool { return ctx.Err() != nil }, skipped: map[string]bool{}, stop: map[string]workflow.CancelFunc{}, waits: map[string]workflow.CancelFunc{}}
}

// handleUpdates lets an operator pause, resume, skip and retry.
func (e *execution) handleUpdates(ctx workflow.Context) error {
	none := func(workflow.Context) error { return nil }
	if err := update(ctx, operation.UpdatePause, func(workflow.Context) error { return e.validatePause() }, e.pause); err != nil {
		return err
	}
	if err := update(ctx, operation.UpdateResume, none, e.resume); err != nil {
		return err
	}
	if err := update(ctx, operation.UpdateGiveUp, func(workflow.Context) error { return e.validateGiveUp() }, e.handleGiveUp); err != nil {
		return err
	}
	if err := updateNode(ctx, operation.UpdateSkipNode, e.validateSkip, e.skip); err != nil {
		return err
	}
	return e.handleNodeUpdates(ctx)
}

// handleNodeUpdates lets an operator end the waits of a workflow that works on nodes.
func (e *execution) handleNodeUpdates(ctx workflow.Context) error {
	return updateNode(ctx, operation.UpdateRetryNow, e.validateRetryNow, e.retryNow)
}

func update(ctx workflow.Context, name string, validate func(workflow.Context) error, do func(workflow.Context) (string, error)) error {
	return workflow.SetUpdateHandlerWithOptions(ctx, name, do, workflow.UpdateHandlerOptions{Validator: validate})
}

func updateNode(ctx workflow.Context, name string, validate func(operation.NodeRequest) error, do func(workflow.Context, operation.NodeRequest) (string, error)) error {
	return workflow.SetUpdateHandlerWithOptions(ctx, name, do, workflow.UpdateHandlerOptions{Validator: validate})
}

func (e *execution) validateGiveUp() error {
	if !e.control.cancelled() {
		return fmt.Errorf("%s was not cancelled: do that first, so that it takes back what it did", e.id)
	}
	return nil
}

func (e *execution) validatePause() error {
	if e.control.cancelled() {
		return fmt.Errorf("%s was cancelled: it goes on to the end of what cannot be stopped", e.id)
	}
	if !e.control.pausedAt.IsZero() {
		return fmt.Errorf("%s is paused already, since %s", e.id, e.control.pausedAt.UTC().Format(time.RFC3339))
	}
	return nil
}

// pause keeps further nodes from being started; those under way go on.
func (e *execution) pause(ctx workflow.Context) (string, error) {
	e.control.pausedAt = workflow.Now(ctx)
	e.status.Paused = e.control.pausedAt
	e.show(ctx)
	return "no further node is started; those under way are seen through", nil
}

// resume goes on. The time it was paused does not count against the deadline.
func (e *execution) resume(ctx workflow.Context) (string, error) {
	if e.control.pausedAt.IsZero() {
		return "it was not paused", nil
	}
	paused := workflow.Now(ctx).Sub(e.control.pausedAt)
	e.control.pausedAt, e.status.Paused = time.Time{}, time.Time{}
	if !e.status.Deadline.IsZero() {
		e.status.Deadline = e.status.Deadline.Add(paused)
	}
	e.show(ctx)
	return fmt.Sprintf("it goes on after a pause of %s", paused.Round(time.Second)), nil
}

// awaitResume returns at once, or when the operation is no longer paused. It is called
// before a node is started. A cancellation ends the pause: what can be stopped is, and
// what cannot, with a ctx that does not hear it, goes on.
func (e *execution) awaitResume(ctx workflow.Context) error {
	if e.control.pausedAt.IsZero() {
		return nil
	}
	ends := workflow.GetVersion(ctx, "cancellation-ends-a-pause", workflow.DefaultVersion, 1) == 1
	err := workflow.Await(ctx, func() bool { return e.control.pausedAt.IsZero() || ends && e.control.cancelled() })
	if ends && e.control.cancelled() {
		e.control.pausedAt, e.status.Paused = time.Time{}, time.Time{}
		e.show(ctx)
	}
	return err
}

func (e *execution) validateSkip(r operation.NodeRequest) error {
	i := slices.IndexFunc(e.status.Nodes, func(n operation.NodeStatus) bool { return n.Node == r.Node })
	switch {
	case e.status.Kind != operation.KindUpgrade:
		return fmt.Errorf("only an upgrade can leave a node out; cancel the %s and start one without %s", strings.ToLower(string(e.status.Kind)), r.Node)
	case i < 0:
		return fmt.Errorf("node %q is not in this upgrade", r.Node)
	case e.status.Nodes[i].Role != policy.Worker:
		return fmt.Errorf("%s is a control plane: workers cannot be newer than it, so that it cannot be left out", r.Node)
	case e.control.skipped[r.Node]:
		return fmt.Errorf("%s is left out already", r.Node)
	case slices.Contains([]operation.Phase{operation.PhaseDone, operation.PhaseSkipped, operation.PhaseFailed}, e.status.Nodes[i].Phase):
		return fmt.Errorf("%s is over: %s", r.Node, e.status.Nodes[i].Phase)
	}
	return nil
}

// skip leaves a worker out. One that is being drained is uncordoned; a script that
// runs is seen through.
func (e *execution) skip(ctx workflow.Context, r operation.NodeRequest) (string, error) {
	e.control.skipped[r.Node] = true
	if stop, running := e.control.stop[r.Node]; running {
		stop()
		return r.Node + " is given up and uncordoned, unless its script runs already", nil
	}
	e.mark(ctx, r.Node, operation.PhaseSkipped, 0, leftOut)
	return r.Node + " is left out", nil
}

// leftOut is the detail of a node that an operator has left out.
const leftOut = "left out by the operator"

func (e *execution) validateRetryNow(r operation.NodeRequest) error {
	if len(e.waiting(r.Node)) > 0 {
		return nil
	}
	if r.Node != "" {
		return fmt.Errorf("%s does not wait for another attempt", r.Node)
	}
	return errors.New("no node waits for another attempt")
}

// retryNow ends the wait of a node, or of all, so that the next attempt begins.
func (e *execution) retryNow(_ workflow.Context, r operation.NodeRequest) (string, error) {
	nodes := e.waiting(r.Node)
	for _, node := range nodes {
		e.control.waits[node]()
	}
	return "the next attempt begins: " + strings.Join(nodes, ", "), nil
}

// waiting lists the nodes that wait for another attempt: this one, or all for "".
func (e *execution) waiting(node string) (nodes []string) {
	for _, n := range e.status.Nodes {
		if _, waits := e.control.waits[n.Node]; waits && (node == "" || node == n.Node) {
			nodes = append(nodes, n.Node)
		}
	}
	return nodes
}

// waitToRetry lets time pass before the next attempt at a node, unless an operator says
// retry-now.
func (e *execution) waitToRetry(ctx workflow.Context, node string, d time.Duration, summary string) error {
	timer, wake := workflow.WithCancel(ctx)
	e.control.waits[node] = wake
	defer delete(e.control.waits, node)
	err := workflow.NewTimerWithOptions(timer, d, workflow.TimerOptions{Summary: summary}).Get(timer, nil)
	if temporal.IsCanceledError(err) && ctx.Err() == nil {
		return nil
	}
	return err
}
