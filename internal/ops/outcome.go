package ops

import (
	"context"
	"encoding/json"
	"fmt"

	"ebb/internal/operation"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	failurepb "go.temporal.io/api/failure/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/converter"
)

// left is what follows when nothing could be taken back.
const left = "nothing was taken back: its cordons stay until the next operation on the cluster takes over, and the cluster is as it was left"

// conclude reads how an operation ended off its last event.
func (t *Temporal) conclude(ctx context.Context, op *Operation, run string) error {
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	events := t.client.GetWorkflowHistory(bounded, op.ID, run, false, enumspb.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT)
	if !events.HasNext() {
		return fmt.Errorf("operation %s has ended, and its history has no end", op.ID)
	}
	event, err := events.Next()
	if err != nil {
		return fmt.Errorf("read how operation %s ended: %w", op.ID, err)
	}
	op.settle(event)
	return nil
}

// settle sets the outcome that a closing event states.
func (op *Operation) settle(event *historypb.HistoryEvent) {
	op.Ended = event.GetEventTime().AsTime()
	switch event.GetEventType() {
	case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
		op.State = Done
		var result json.RawMessage
		if decode(event.GetWorkflowExecutionCompletedEventAttributes().GetResult(), &result) > 0 {
			op.Result = result
		}
	case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
		op.fail(event.GetWorkflowExecutionFailedEventAttributes().GetFailure())
	case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED:
		op.cancelled(event.GetWorkflowExecutionCanceledEventAttributes().GetDetails())
	case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED:
		a := event.GetWorkflowExecutionTerminatedEventAttributes()
		op.State = Terminated
		op.Message = fmt.Sprintf("terminated by %s (%s); %s", a.GetIdentity(), a.GetReason(), left)
	case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT:
		op.State, op.Message = TimedOut, "the workflow ran out of time; "+left
	default:
		op.State, op.Message = Failed, "ended with "+event.GetEventType().String()
	}
}

// fail sorts a failed workflow by the type of its error.
func (op *Operation) fail(f *failurepb.Failure) {
	info := f.GetApplicationFailureInfo()
	op.Message = f.GetMessage()
	switch info.GetType() {
	case operation.TypeRefused:
		op.State = Refused
	case operation.TypeRolledBack:
		op.State, op.RolledBack = RolledBack, true
	default:
		op.State = Failed
	}
	var (
		status operation.Status
		left   operation.Outcome
	)
	n := decode(info.GetDetails(), &status, &left)
	if n > 0 {
		op.Status = &status
	}
	if n > 1 {
		op.Outcome = &left
	}
}

// cancelled reads the details of a cancelled workflow: its message, and how it
// left the cluster (TypeRefused, TypeRolledBack or TypeFailed), its status and its
// outcome. What took effect
// before the workflow had run at all has neither, and changed nothing.
func (op *Operation) cancelled(details *commonpb.Payloads) {
	var (
		text, kind string
		status     operation.Status
		left       operation.Outcome
	)
	n := decode(details, &text, &kind, &status, &left)
	op.State, op.Message = Cancelled, text
	switch n {
	case 0:
		op.RolledBack, op.Message = true, "cancelled before it began; nothing was changed"
	case 1: // a drain and a scale-down that can be cancelled are always taken back
		op.RolledBack = op.Kind != operation.KindUpgrade
	default:
		op.RolledBack = kind == operation.TypeRolledBack || kind == operation.TypeRefused
	}
	if n > 2 {
		op.Status = &status
	}
	if n > 3 {
		op.Outcome = &left
	}
}

// decode reads as many payloads into targets as there are of both, and stops at
// the first that does not fit. It returns how many it read.
func decode(payloads *commonpb.Payloads, targets ...any) int {
	list := payloads.GetPayloads()
	for i, target := range targets {
		if i >= len(list) || converter.GetDefaultDataConverter().FromPayload(list[i], target) != nil {
			return i
		}
	}
	return len(targets)
}
