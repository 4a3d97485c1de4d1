package ops

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"

	"ebb/internal/operation"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"golang.org/x/sync/errgroup"
)

// description is a workflow as the engine sees it, whether a worker is there or not.
type description workflowservice.DescribeWorkflowExecutionResponse

func (d *description) info() *workflowpb.WorkflowExecutionInfo { return d.WorkflowExecutionInfo }
func (d *description) run() string                             { return d.info().GetExecution().GetRunId() }

func (d *description) open() bool { return isOpen(d.info().GetStatus()) }

func isOpen(s enumspb.WorkflowExecutionStatus) bool {
	return s == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING || s == enumspb.WORKFLOW_EXECUTION_STATUS_PAUSED
}

// observer looks at one operation, once or again and again. It remembers what
// workflows said of themselves, and asks again only when they have moved on.
type observer struct {
	*Temporal
	id string

	mu   sync.Mutex
	said map[string]answer // by workflow ID
}

// answer is what a workflow said when its history was this long.
type answer struct {
	length int64
	status *operation.Status
}

func (t *Temporal) newObserver(id string) *observer {
	return &observer{Temporal: t, id: id, said: map[string]answer{}}
}

// look is the operation as it is now.
func (o *observer) look(ctx context.Context) (Operation, error) {
	d, err := o.describe(ctx, o.id)
	if err != nil {
		return Operation{}, err
	}
	op := summary(d.info())
	op.Cancelling = d.open() && d.WorkflowExtendedInfo.GetCancelRequested()
	if !d.open() {
		return op, o.end(ctx, d, &op)
	}
	var silent error
	op.Status, silent = o.ask(ctx, d)
	op.Live = map[string]Live{}
	children, err := o.children(ctx, d)
	if err != nil {
		return Operation{}, err
	}
	op.merge(d, "", o.now())
	for _, c := range children {
		op.merge(c, strings.TrimPrefix(c.info().GetExecution().GetWorkflowId(), o.id+"/"), o.now())
	}
	o.detail(&op)
	op.identify()
	op.Notice = o.obstacle(ctx, append(children, d), silent)
	return op, ctx.Err()
}

// end reads the outcome of a workflow that has ended, and what its nodes were
// like then, if anybody can tell.
func (o *observer) end(ctx context.Context, d *description, op *Operation) error {
	if err := o.conclude(ctx, op, d.run()); err != nil {
		return err
	}
	if op.Status == nil {
		op.Status, _ = o.ask(ctx, d) // without a worker the outcome has to do
	}
	op.identify()
	return nil
}

// children looks at the nodes that an upgrade has under way.
func (o *observer) children(ctx context.Context, d *description) ([]*description, error) {
	found := make([]*description, len(d.PendingChildren))
	group, ctx := errgroup.WithContext(ctx)
	for i, pending := range d.PendingChildren {
		group.Go(func() error {
			described, err := o.describe(ctx, pending.GetWorkflowId())
			var missing *serviceerror.NotFound
			if errors.As(err, &missing) {
				return nil // it is about to start
			}
			if err != nil {
				return err
			}
			found[i] = described
			if described.open() {
				_, _ = o.ask(ctx, described) // is remembered; of a silent worker the parent tells
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(found, func(c *description) bool { return c == nil }), nil
}

// ask has a workflow say what it does, unless it has not moved since it last did.
func (o *observer) ask(ctx context.Context, d *description) (*operation.Status, error) {
	id, length := d.info().GetExecution().GetWorkflowId(), d.info().GetHistoryLength()
	o.mu.Lock()
	last, ok := o.said[id]
	o.mu.Unlock()
	if ok && last.length == length {
		return last.status, nil
	}
	bounded, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	value, err := o.client.QueryWorkflow(bounded, id, d.run(), operation.QueryStatus)
	if err != nil {
		return last.status, err
	}
	status := &operation.Status{}
	if err := value.Get(status); err != nil {
		return last.status, err
	}
	o.mu.Lock()
	o.said[id] = answer{length: length, status: status}
	o.mu.Unlock()
	return status, nil
}

// detail puts what the workflows of an upgrade's nodes say in the place of what
// their parent says of them, which is only that they run. One that has not
// spoken yet is about to look at its node.
func (o *observer) detail(op *Operation) {
	if op.Status == nil || op.Kind != operation.KindUpgrade {
		return
	}
	merged := *op.Status // what the parent said is kept for the next look
	merged.Nodes = slices.Clone(merged.Nodes)
	for i, n := range merged.Nodes {
		if n.Phase != operation.PhaseUpgrading && n.Phase != operation.PhaseStaging || n.Attempt > 0 {
			continue // the parent knows it from the end, or has not started it
		}
		if n.Phase == operation.PhaseUpgrading {
			merged.Nodes[i].Phase = operation.PhaseChecking
		}
		if child := o.said[o.id+"/"+n.Node]; child.status != nil && len(child.status.Nodes) == 1 {
			merged.Nodes[i] = child.status.Nodes[0]
		}
	}
	op.Status = &merged
}

// identify fills in what the memo did not say, for a workflow that was started
// by something else than Start.
func (op *Operation) identify() {
	if op.Cluster == "" && op.Status != nil {
		op.Cluster, op.Target = op.Status.Cluster, op.Status.Target
	}
}

// summary is what is known of a workflow without asking anybody.
func summary(info *workflowpb.WorkflowExecutionInfo) Operation {
	op := Operation{State: Running, Started: info.GetStartTime().AsTime()}
	if info.GetCloseTime() != nil {
		op.Ended = info.GetCloseTime().AsTime()
	}
	var request json.RawMessage
	if decodeMemo(info.GetMemo(), memoRequest, &request) {
		_ = json.Unmarshal(request, &op.Request) // another writer's memo is no memo
	}
	op.ID, op.Kind = info.GetExecution().GetWorkflowId(), operation.Kind(info.GetType().GetName())
	return op
}
