package ops

import (
	"testing"
	"time"

	"ebb/internal/operation"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	failurepb "go.temporal.io/api/failure/v1"
	historypb "go.temporal.io/api/history/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/sdk/converter"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func payloads(t *testing.T, values ...any) *commonpb.Payloads {
	t.Helper()
	p, err := converter.GetDefaultDataConverter().ToPayloads(values...)
	require.NoError(t, err)
	return p
}

// A cancelled operation is rolled back when its workflow says so; one that only
// has a text is judged by its kind.
func TestCancelled(t *testing.T) {
	for name, c := range map[string]struct {
		kind    operation.Kind
		details []any
		back    bool
		message string
	}{
		"nothing ran":           {operation.KindUpgrade, nil, true, "cancelled before it began; nothing was changed"},
		"drain":                 {operation.KindDrain, []any{"text"}, true, "text"},
		"upgrade, unsaid":       {operation.KindUpgrade, []any{"text"}, false, "text"},
		"upgrade, rolled back":  {operation.KindUpgrade, []any{"text", operation.TypeRolledBack}, true, "text"},
		"upgrade, untouched":    {operation.KindUpgrade, []any{"text", operation.TypeRefused}, true, "text"},
		"upgrade, in the midst": {operation.KindUpgrade, []any{"text", operation.TypeFailed, operation.Status{Step: "s"}}, false, "text"},
	} {
		t.Run(name, func(t *testing.T) {
			op := Operation{Request: Request{Kind: c.kind}}
			op.settle(&historypb.HistoryEvent{
				EventType: enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
				Attributes: &historypb.HistoryEvent_WorkflowExecutionCanceledEventAttributes{
					WorkflowExecutionCanceledEventAttributes: &historypb.WorkflowExecutionCanceledEventAttributes{Details: payloads(t, c.details...)}},
			})
			require.Equal(t, Cancelled, op.State)
			require.Equal(t, c.back, op.RolledBack)
			require.Equal(t, c.message, op.Message)
			require.Equal(t, len(c.details) == 3, op.Status != nil)
		})
	}
}

func TestErrorOfAnotherTypeIsAFailure(t *testing.T) {
	op := Operation{}
	op.fail(&failurepb.Failure{Message: "a bug"})
	require.Equal(t, Failed, op.State)
	require.Equal(t, "a bug", op.Message)
	require.Nil(t, op.Status)
}

func TestTimedOut(t *testing.T) {
	op := Operation{}
	op.settle(&historypb.HistoryEvent{EventType: enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT})
	require.Equal(t, TimedOut, op.State)
	require.Contains(t, op.Message, "nothing was taken back")
}

func TestTrouble(t *testing.T) {
	now := time.Date(2026, 12, 1, 1, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(-d)) }
	lost := &failurepb.Failure{Message: "timeout", FailureInfo: &failurepb.Failure_TimeoutFailureInfo{
		TimeoutFailureInfo: &failurepb.TimeoutFailureInfo{TimeoutType: enumspb.TIMEOUT_TYPE_HEARTBEAT}}}
	stopping := &failurepb.Failure{Message: "stopping", FailureInfo: &failurepb.Failure_ApplicationFailureInfo{
		ApplicationFailureInfo: &failurepb.ApplicationFailureInfo{Type: "WorkerStopping"}}}
	const started, scheduled = enumspb.PENDING_ACTIVITY_STATE_STARTED, enumspb.PENDING_ACTIVITY_STATE_SCHEDULED
	for name, c := range map[string]struct {
		activity *workflowpb.PendingActivityInfo
		want     string
	}{
		"first try": {&workflowpb.PendingActivityInfo{State: started, Attempt: 1}, ""},
		"lives":     {&workflowpb.PendingActivityInfo{State: started, Attempt: 2, LastFailure: lost, LastStartedTime: ago(time.Minute), LastHeartbeatTime: ago(time.Second)}, ""},
		"silent": {&workflowpb.PendingActivityInfo{State: started, Attempt: 1, LastWorkerIdentity: "w@h:1", LastStartedTime: ago(time.Minute), LastHeartbeatTime: ago(6 * time.Second)},
			"nothing heard of its worker w@h:1 for 6s"},
		"worker gone": {&workflowpb.PendingActivityInfo{State: scheduled, Attempt: 2, LastFailure: lost}, "Drain is tried again (2): its worker is gone"},
		"hand over":   {&workflowpb.PendingActivityInfo{State: scheduled, Attempt: 2, LastFailure: stopping}, ""},
		"refused": {&workflowpb.PendingActivityInfo{State: started, Attempt: 4, LastFailure: &failurepb.Failure{Message: "connection refused\nmore"}},
			"Drain is tried again (4): connection refused"},
	} {
		c.activity.ActivityType = &commonpb.ActivityType{Name: operation.ActivityDrain}
		require.Equal(t, c.want, trouble(c.activity, now), name)
	}
}

func TestHeartbeatsAreSortedByNode(t *testing.T) {
	d := &description{PendingActivities: []*workflowpb.PendingActivityInfo{
		{ActivityType: &commonpb.ActivityType{Name: operation.ActivityDrain}, HeartbeatDetails: payloads(t, operation.DrainProgress{Node: "w1", Total: 3})},
		{ActivityType: &commonpb.ActivityType{Name: operation.ActivityRunScript}, HeartbeatDetails: payloads(t, map[string]any{"offset": 7, "output": "line\n"})},
		{ActivityType: &commonpb.ActivityType{Name: "Claim"}, Attempt: 2, LastFailure: &failurepb.Failure{Message: "refused"}},
	}}
	op := Operation{Live: map[string]Live{}}
	op.merge(d, "", time.Now())
	require.Equal(t, 3, op.Live["w1"].Drain.Total)
	require.Equal(t, "Claim is tried again (2): refused", op.Live["Claim"].Trouble)

	child := Operation{Live: map[string]Live{}}
	child.merge(&description{PendingActivities: d.PendingActivities[1:2]}, "w2", time.Now())
	require.Equal(t, map[string]Live{"w2": {Output: "line\n"}}, child.Live)
}
