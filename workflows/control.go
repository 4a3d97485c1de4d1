package workflows

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"ebb/internal/plan"
)

// Updates by which an operator steers a running operation. Each answers with what
// it did, in a sentence; one that makes no sense now is refused with the reason.
// Pause, resume and skip-node are for an operation, retry-now also for the
// workflow of one node of an upgrade.
const (
	UpdatePause    = "pause"     // start no further node
	UpdateResume   = "resume"    // go on
	UpdateSkipNode = "skip-node" // leave a worker out of an upgrade
	UpdateRetryNow = "retry-now" // do not wait for the next attempt
)

// NodeRequest is the argument of skip-node and retry-now.
type NodeRequest struct {
	Node string `json:"node,omitempty"` // for retry-now, empty = every node that waits
}

// control is how an operation is steered.
type control struct {
	pausedAt time.Time                      // zero = not paused
	skipped  map[string]bool                // nodes an operator leaves out
	stop     map[string]workflow.CancelFunc // ends the work on a node, while it runs in a child workflow
	waits    map[string]workflow.CancelFunc // ends the wait of a node for its next attempt
}

func newControl() control {
	return control{skipped: map[string]bool{}, stop: map[string]workflow.CancelFunc{}, waits: map[string]workflow.CancelFunc{}}
}

// steer lets an operator pause, resume, skip and retry.
func (o *operation) steer(ctx workflow.Context) error {
	none := func(workflow.Context) error { return nil }
	if err := update(ctx, UpdatePause, func(workflow.Context) error { return o.mayPause() }, o.pause); err != nil {
		return err
	}
	if err := update(ctx, UpdateResume, none, o.resume); err != nil {
		return err
	}
	if err := updateNode(ctx, UpdateSkipNode, o.maySkip, o.skip); err != nil {
		return err
	}
	return o.steerNode(ctx)
}

// steerNode lets an operator end the waits of a workflow that works on nodes.
func (o *operation) steerNode(ctx workflow.Context) error {
	return updateNode(ctx, UpdateRetryNow, o.mayRetry, o.retryNow)
}

func update(ctx workflow.Context, name string, may func(workflow.Context) error, do func(workflow.Context) (string, error)) error {
	return workflow.SetUpdateHandlerWithOptions(ctx, name, do, workflow.UpdateHandlerOptions{Validator: may})
}

func updateNode(ctx workflow.Context, name string, may func(NodeRequest) error, do func(workflow.Context, NodeRequest) (string, error)) error {
	return workflow.SetUpdateHandlerWithOptions(ctx, name, do, workflow.UpdateHandlerOptions{Validator: may})
}

func (o *operation) mayPause() error {
	if !o.control.pausedAt.IsZero() {
		return fmt.Errorf("%s is paused already, since %s", o.id, o.control.pausedAt.UTC().Format(time.RFC3339))
	}
	return nil
}

// pause keeps further nodes from being started; those under way go on.
func (o *operation) pause(ctx workflow.Context) (string, error) {
	o.control.pausedAt = workflow.Now(ctx)
	o.status.Paused = o.control.pausedAt
	o.show(ctx)
	return "no further node is started; those under way are seen through", nil
}

// resume goes on. The time it was paused does not count against the deadline.
func (o *operation) resume(ctx workflow.Context) (string, error) {
	if o.control.pausedAt.IsZero() {
		return "it was not paused", nil
	}
	paused := workflow.Now(ctx).Sub(o.control.pausedAt)
	o.control.pausedAt, o.status.Paused = time.Time{}, time.Time{}
	if !o.status.Deadline.IsZero() {
		o.status.Deadline = o.status.Deadline.Add(paused)
	}
	o.show(ctx)
	return fmt.Sprintf("it goes on after a pause of %s", paused.Round(time.Second)), nil
}

// gate is passed before a node is started; it is shut while the operation is paused.
func (o *operation) gate(ctx workflow.Context) error {
	if o.control.pausedAt.IsZero() {
		return nil
	}
	return workflow.Await(ctx, func() bool { return o.control.pausedAt.IsZero() })
}

func (o *operation) maySkip(r NodeRequest) error {
	i := slices.IndexFunc(o.status.Nodes, func(n NodeStatus) bool { return n.Node == r.Node })
	switch {
	case o.status.Kind != KindUpgrade:
		return fmt.Errorf("only an upgrade can leave a node out; cancel the %s and start one without %s", strings.ToLower(string(o.status.Kind)), r.Node)
	case i < 0:
		return fmt.Errorf("node %q is not in this upgrade", r.Node)
	case o.status.Nodes[i].Role != plan.Worker:
		return fmt.Errorf("%s is a control plane: workers cannot be newer than it, so that it cannot be left out", r.Node)
	case o.control.skipped[r.Node]:
		return fmt.Errorf("%s is left out already", r.Node)
	case slices.Contains([]Phase{Done, Skipped, Failed}, o.status.Nodes[i].Phase):
		return fmt.Errorf("%s is over: %s", r.Node, o.status.Nodes[i].Phase)
	}
	return nil
}

// skip leaves a worker out. One that is being drained is uncordoned; a script that
// runs is seen through.
func (o *operation) skip(ctx workflow.Context, r NodeRequest) (string, error) {
	o.control.skipped[r.Node] = true
	if stop, running := o.control.stop[r.Node]; running {
		stop()
		return r.Node + " is given up and uncordoned, unless its script runs already", nil
	}
	o.mark(ctx, r.Node, Skipped, 0, leftOut)
	return r.Node + " is left out", nil
}

// leftOut is the detail of a node that an operator has left out.
const leftOut = "left out by the operator"

func (o *operation) mayRetry(r NodeRequest) error {
	if len(o.waiting(r.Node)) > 0 {
		return nil
	}
	if r.Node != "" {
		return fmt.Errorf("%s does not wait for another attempt", r.Node)
	}
	return errors.New("no node waits for another attempt")
}

// retryNow ends the wait of a node, or of all, so that the next attempt begins.
func (o *operation) retryNow(_ workflow.Context, r NodeRequest) (string, error) {
	nodes := o.waiting(r.Node)
	for _, node := range nodes {
		o.control.waits[node]()
	}
	return "the next attempt begins: " + strings.Join(nodes, ", "), nil
}

// waiting lists the nodes that wait for another attempt: this one, or all for "".
func (o *operation) waiting(node string) (nodes []string) {
	for _, n := range o.status.Nodes {
		if _, waits := o.control.waits[n.Node]; waits && (node == "" || node == n.Node) {
			nodes = append(nodes, n.Node)
		}
	}
	return nodes
}

// wait lets time pass before the next attempt at a node, unless an operator says
// retry-now.
func (o *operation) wait(ctx workflow.Context, node string, d time.Duration, summary string) error {
	timer, wake := workflow.WithCancel(ctx)
	o.control.waits[node] = wake
	defer delete(o.control.waits, node)
	err := workflow.NewTimerWithOptions(timer, d, workflow.TimerOptions{Summary: summary}).Get(timer, nil)
	if temporal.IsCanceledError(err) && ctx.Err() == nil {
		return nil
	}
	return err
}
