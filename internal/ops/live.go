package ops

import (
	"fmt"
	"strings"
	"time"

	"ebb/internal/operation"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/sdk/converter"
)

// merge adds what the running activities of a workflow say. node is theirs, or
// "" for those of the operation itself, whose heartbeat has to name it.
func (op *Operation) merge(d *description, node string, now time.Time) {
	for _, a := range d.PendingActivities {
		name, live := node, Live{}
		switch a.GetActivityType().GetName() {
		case operation.ActivityDrain:
			var p operation.DrainProgress
			if decode(a.GetHeartbeatDetails(), &p) > 0 {
				live.Drain, name = &p, p.Node
			}
		case operation.ActivityRunScript:
			var p operation.ScriptProgress
			if decode(a.GetHeartbeatDetails(), &p) > 0 {
				live.Output = p.Output
				if name == "" {
					name = p.Node
				}
			}
		}
		live.Trouble = trouble(a, now)
		if name == "" {
			name = a.GetActivityType().GetName() // of the cluster, not of a node
		}
		if live != (Live{}) {
			op.Live[name] = live
		}
	}
}

// silentAfter is how long a heartbeat may be overdue before it is worth a word:
// they come once a second, and after ten the worker is given up.
const silentAfter = 4 * time.Second

// trouble says why an activity is being tried again, or that its worker is
// silent; "" when it goes on well.
func trouble(a *workflowpb.PendingActivityInfo, now time.Time) string {
	name, failure := a.GetActivityType().GetName(), a.GetLastFailure()
	beat, started := a.GetLastHeartbeatTime().AsTime(), a.GetLastStartedTime().AsTime()
	if a.GetState() == enumspb.PENDING_ACTIVITY_STATE_STARTED && a.GetLastHeartbeatTime() != nil && !beat.Before(started) {
		if silent := now.Sub(beat); silent > silentAfter {
			return fmt.Sprintf("nothing heard of its worker %s for %s", a.GetLastWorkerIdentity(), silent.Round(time.Second))
		}
		return ""
	}
	if failure == nil || a.GetAttempt() < 2 || failure.GetApplicationFailureInfo().GetType() == operation.TypeWorkerStopping {
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
	return fmt.Sprintf("%s is tried again (%d): %s", name, a.GetAttempt(), cause)
}

func decodeMemo(memo *commonpb.Memo, key string, target any) bool {
	payload, ok := memo.GetFields()[key]
	return ok && converter.GetDefaultDataConverter().FromPayload(payload, target) == nil
}
