package ops

import (
	"fmt"
	"strings"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/sdk/converter"

	"ebb/internal/drain"
)

// Activities whose heartbeat has something for a person.
const (
	activityDrain  = "Drain"
	activityScript = "RunScript"
)

// merge adds what the running activities of a workflow say. node is theirs, or
// "" for those of the operation itself, whose heartbeat has to name it.
func (op *Operation) merge(d *description, node string) {
	for _, a := range d.PendingActivities {
		name, live := node, Live{}
		switch a.GetActivityType().GetName() {
		case activityDrain:
			var p drain.Progress
			if decode(a.GetHeartbeatDetails(), &p) > 0 {
				live.Drain, name = &p, p.Node
			}
		case activityScript:
			var p struct{ Node, Output string }
			if decode(a.GetHeartbeatDetails(), &p) > 0 {
				live.Output = p.Output
				if name == "" {
					name = p.Node
				}
			}
		}
		live.Trouble = trouble(a)
		if name == "" {
			name = a.GetActivityType().GetName() // of the cluster, not of a node
		}
		if live != (Live{}) {
			op.Live[name] = live
		}
	}
}

// trouble says why an activity is being tried again.
func trouble(a *workflowpb.PendingActivityInfo) string {
	failure := a.GetLastFailure()
	if failure == nil || a.GetAttempt() < 2 || failure.GetApplicationFailureInfo().GetType() == "WorkerStopping" {
		return ""
	}
	cause := failure.GetMessage()
	if timeout := failure.GetTimeoutFailureInfo(); timeout != nil {
		cause = "it did not end in time"
		if timeout.GetTimeoutType() == enumspb.TIMEOUT_TYPE_HEARTBEAT {
			cause = "its worker is gone"
		}
	}
	cause, _, _ = strings.Cut(cause, "\n")
	return fmt.Sprintf("%s, try %d: %s", a.GetActivityType().GetName(), a.GetAttempt(), cause)
}

func decodeMemo(memo *commonpb.Memo, key string, target any) bool {
	payload, ok := memo.GetFields()[key]
	return ok && converter.GetDefaultDataConverter().FromPayload(payload, target) == nil
}
