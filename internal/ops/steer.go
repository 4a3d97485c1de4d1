package ops

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"ebb/internal/operation"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
)

// Action is a way to steer a running operation.
type Action string

// Actions.
const (
	Pause    Action = operation.UpdatePause
	Resume   Action = operation.UpdateResume
	SkipNode Action = operation.UpdateSkipNode
	RetryNow Action = operation.UpdateRetryNow
	GiveUp   Action = operation.UpdateGiveUp // of one that was cancelled: leave, and name, what cannot be put back now
)

// steerTimeout is how long a worker may take to answer; one that polls needs
// milliseconds.
const steerTimeout = 10 * time.Second

// NotNowError is an action that an operation does not take now. Nothing was changed.
type NotNowError struct{ ID, Reason string }

func (e *NotNowError) Error() string { return fmt.Sprintf("%s: %s", e.ID, e.Reason) }

// Steer implements Client.
func (t *Temporal) Steer(ctx context.Context, id string, s Steering) (string, error) {
	d, err := t.describe(ctx, id)
	if err != nil {
		return "", named(id, err)
	}
	if !d.open() && s.Key == "" { // with a key, the first answer is still there
		return "", over(id, s)
	}
	var args []any
	if s.Action == SkipNode || s.Action == RetryNow {
		args = []any{operation.NodeRequest{Node: s.Node}}
	}
	said, err := t.update(ctx, id, s, args)
	if s.Action != RetryNow {
		return said, err
	}
	answers := []string{said}
	for _, node := range d.waiting(s.Node) {
		said, childErr := t.update(ctx, node, s, args)
		answers, err = append(answers, said), errors.Join(err, childErr)
	}
	if text := strings.TrimPrefix(strings.Join(answers, "\n"), "\n"); strings.TrimSpace(text) != "" {
		return strings.TrimSpace(text), nil
	}
	return "", firstOf(err)
}

// waiting are the workflows in which the nodes of an upgrade wait; a node that is
// named may have ended since it was last asked.
func (d *description) waiting(node string) (ids []string) {
	if node != "" && d.info().GetType().GetName() == string(operation.KindUpgrade) {
		return []string{d.info().GetExecution().GetWorkflowId() + "/" + node}
	}
	for _, child := range d.PendingChildren {
		ids = append(ids, child.GetWorkflowId())
	}
	return ids
}

// over is the answer of an operation that has ended.
func over(id string, s Steering) error {
	return &NotNowError{ID: id, Reason: "it is over, there is nothing to " + string(s.Action)}
}

// firstOf is the first of joined errors: of many that say the same, one is enough.
func firstOf(err error) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok && len(joined.Unwrap()) > 0 {
		return firstOf(joined.Unwrap()[0])
	}
	return err
}

// update sends a Workflow Update and waits for the answer. The engine answers one
// that comes with the same key again as it did the first time.
func (t *Temporal) update(ctx context.Context, workflow string, s Steering, args []any) (said string, err error) {
	bounded, cancel := context.WithTimeout(ctx, steerTimeout)
	defer cancel()
	handle, err := t.client.UpdateWorkflow(bounded, client.UpdateWorkflowOptions{
		WorkflowID: workflow, UpdateID: s.Key, UpdateName: string(s.Action), Args: args, WaitForStage: client.WorkflowUpdateStageCompleted,
	})
	if err == nil {
		err = handle.Get(bounded, &said)
	}
	var (
		refused *temporal.ApplicationError
		missing *serviceerror.NotFound
	)
	switch {
	case err == nil:
		return said, nil
	case errors.As(err, &refused):
		return "", &NotNowError{ID: workflow, Reason: refused.Message()}
	case errors.As(err, &missing):
		return "", over(workflow, s)
	case ctx.Err() == nil && bounded.Err() != nil:
		return "", fmt.Errorf("no worker has answered within %s: whether %s takes the %s is not known; `ebb status %s` shows it once a worker runs",
			steerTimeout, workflow, s.Action, workflow)
	}
	return "", fmt.Errorf("%s %s: %w", s.Action, workflow, err)
}
