package ops

import (
	"context"
	"errors"
	"fmt"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"

	"ebb/internal/engine"
)

// callTimeout bounds one call to the engine, so that an engine that is away is
// noticed before the SDK has retried for its own 10 s.
const callTimeout = 3 * time.Second

var _ Client = (*Temporal)(nil)

// Temporal talks to operations through a Temporal client.
type Temporal struct {
	client    client.Client
	namespace string
	notice    func(string)
	now       func() time.Time
}

// NewTemporal is the operations of one namespace of the engine behind c. The
// client stays the caller's to close.
func NewTemporal(c client.Client, namespace string) *Temporal {
	return &Temporal{client: c, namespace: namespace, notice: func(string) {}, now: time.Now}
}

// WithNotices sets who is told, in words for a person, that Watch waits for the
// engine and that it is back. It returns t.
func (t *Temporal) WithNotices(notice func(string)) *Temporal {
	t.notice = notice
	return t
}

// Memo keys of an operation's workflow. The whole request is kept, so that an ID
// that is used twice can be compared; the others are for readers of the Web UI.
const (
	memoRequest = "request"
	memoCluster = "cluster"
	memoKind    = "kind"
	memoWhat    = "what"
)

// Start implements Client.
func (t *Temporal) Start(ctx context.Context, r Request) (Operation, bool, error) {
	if err := r.Validate(); err != nil {
		return Operation{}, false, err
	}
	_, err := t.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
		ID: r.ID, TaskQueue: engine.TaskQueue,
		// The first one wins, running or over; that it was there is told by the error.
		WorkflowIDReusePolicy:                    enumspb.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE,
		WorkflowIDConflictPolicy:                 enumspb.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
		WorkflowExecutionErrorWhenAlreadyStarted: true,
		Memo:                                     map[string]any{memoRequest: r, memoCluster: r.Cluster, memoKind: Word(r.Kind), memoWhat: r.String()},
		StaticSummary:                            r.String(),
		StaticDetails:                            fmt.Sprintf("Follow it with `ebb watch %s`, take it back with `ebb cancel %s`.", r.ID, r.ID),
	}, string(r.Kind), r.input())
	var exists *serviceerror.WorkflowExecutionAlreadyStarted
	switch {
	case errors.As(err, &exists):
		op, err := t.existing(ctx, r)
		return op, false, err
	case err != nil:
		return Operation{}, false, fmt.Errorf("start operation %s: %w", r.ID, err)
	}
	return Operation{Request: r, State: Running, Started: t.now()}, true, nil
}

// existing is the operation that has the ID of a request, if it is the one asked for.
func (t *Temporal) existing(ctx context.Context, r Request) (Operation, error) {
	d, err := t.describe(ctx, r.ID)
	if err != nil {
		return Operation{}, named(r.ID, err)
	}
	if op := summary(d.info()); !op.same(r) {
		return op, &ConflictError{ID: r.ID, Exists: op.Request, Asked: r}
	}
	return t.Get(ctx, r.ID)
}

// Cancel implements Client.
func (t *Temporal) Cancel(ctx context.Context, id string) error {
	err := t.client.CancelWorkflow(ctx, id, "")
	var over *serviceerror.NotFound
	if !errors.As(err, &over) {
		return err
	}
	// The engine says the same of a workflow that is over and of one it does not know.
	_, err = t.describe(ctx, id)
	return named(id, err)
}

// Get implements Client.
func (t *Temporal) Get(ctx context.Context, id string) (Operation, error) {
	op, err := t.newObserver(id).look(ctx)
	if err != nil {
		return Operation{}, named(id, err)
	}
	return op, nil
}

// Request is what an operation was asked to do, in one call to the engine. The
// error of an unknown ID is an *UnknownError.
func (t *Temporal) Request(ctx context.Context, id string) (Request, error) {
	d, err := t.describe(ctx, id)
	if err != nil {
		return Request{}, named(id, err)
	}
	op := summary(d.info())
	if op.Cluster == "" { // started by something else than Start: only it can tell
		op, err = t.Get(ctx, id)
	}
	return op.Request, err
}

// describe is a bounded call, so that it fails while the engine is away.
func (t *Temporal) describe(ctx context.Context, id string) (*description, error) {
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	d, err := t.client.DescribeWorkflowExecution(bounded, id, "")
	if err != nil {
		return nil, err
	}
	return (*description)(d), nil
}
