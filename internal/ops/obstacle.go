package ops

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"

	"ebb/internal/engine"
)

const (
	// queryTimeout is how long a worker may take to say what an operation does.
	queryTimeout = 2 * time.Second
	// pickUpTimeout is how long work may lie in the queue; a worker that polls
	// takes it within milliseconds.
	pickUpTimeout = 3 * time.Second
	// pollTimeout is how long one poll of a worker is open, and a margin: one whose
	// last poll is older does not poll.
	pollTimeout = 70 * time.Second
)

// obstacle says, for a person, why an open operation does not go on; "" when it
// does as far as can be seen. silent is why a worker did not answer.
func (o *observer) obstacle(ctx context.Context, parts []*description, silent error) string {
	for _, d := range parts {
		if task := d.PendingWorkflowTask; task.GetAttempt() > 3 {
			return fmt.Sprintf("workers cannot continue workflow %s (attempt %d): is one of them another version of Ebb? Its log says what is wrong",
				d.info().GetExecution().GetWorkflowId(), task.GetAttempt())
		}
	}
	if o.waiting(parts) || unanswered(silent) {
		return o.missing(ctx)
	}
	return ""
}

// waiting reports whether some work has been in the queue for too long.
func (o *observer) waiting(parts []*description) bool {
	late := o.now().Add(-pickUpTimeout)
	for _, d := range parts {
		task := d.PendingWorkflowTask
		if task.GetState() == enumspb.PENDING_WORKFLOW_TASK_STATE_SCHEDULED && task.GetScheduledTime().AsTime().Before(late) {
			return true
		}
		for _, a := range d.PendingActivities {
			if a.GetState() == enumspb.PENDING_ACTIVITY_STATE_SCHEDULED && a.GetScheduledTime().AsTime().Before(late) {
				return true
			}
		}
	}
	return false
}

// unanswered reports whether a query failed for want of a worker.
func unanswered(err error) bool {
	var (
		slow  *serviceerror.DeadlineExceeded
		fresh *serviceerror.WorkflowNotReady
		state *serviceerror.FailedPrecondition
	)
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &slow) || errors.As(err, &fresh) || errors.As(err, &state)
}

// missing describes the workers, or that there are none, and what to do. It is
// "" while a worker has polled just now.
func (o *observer) missing(ctx context.Context) string {
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	queue, err := o.client.DescribeTaskQueue(bounded, engine.TaskQueue, enumspb.TASK_QUEUE_TYPE_WORKFLOW)
	if err != nil {
		return "no worker answers"
	}
	var known []string
	for _, p := range queue.GetPollers() {
		last := p.GetLastAccessTime().AsTime()
		if o.now().Sub(last) < pickUpTimeout {
			return "" // it has just come, and is about to take it
		}
		if o.now().Sub(last) < pollTimeout {
			known = append(known, fmt.Sprintf("%s (last at %s)", p.GetIdentity(), last.Local().Format(time.TimeOnly)))
		}
	}
	if len(known) == 0 {
		return fmt.Sprintf("no worker polls the task queue %q: start one with `ebb-worker` (or `ebb dev`); the operation goes on by itself then", engine.TaskQueue)
	}
	return fmt.Sprintf("no worker takes its work, although the engine has heard of %s: if that one is gone, start another with `ebb-worker`; the operation goes on by itself then",
		strings.Join(known, "; "))
}
