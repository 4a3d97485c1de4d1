package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/client"
)

// workActivities are the activities whose time the cluster takes, not the orchestration:
// pods that have to go, the script on a node, a kubelet that has to come back.
var workActivities = []string{"Drain", "RunScript", "WaitReady"}

// otherActivities are short ones: requests to the API server and commands on a node.
const otherActivities = "other activities"

type span struct{ from, to time.Time }

// timeline is what the history of an operation says about its time.
type timeline struct {
	total span
	spans map[string][]span // by activity type, the short ones together
}

// readHistory reads the history of an operation, and those of its children.
func readHistory(ctx context.Context, c client.Client, id string) (timeline, error) {
	t := timeline{spans: map[string][]span{}}
	whole, err := t.read(ctx, c, id)
	t.total = whole
	return t, err
}

func (t *timeline) read(ctx context.Context, c client.Client, id string) (whole span, err error) {
	types, started := map[int64]string{}, map[int64]time.Time{}
	end := func(event *history.HistoryEvent, scheduled int64) {
		name := types[scheduled]
		if !slices.Contains(workActivities, name) {
			name = otherActivities
		}
		t.spans[name] = append(t.spans[name], span{started[scheduled], event.GetEventTime().AsTime()})
	}
	var children []string
	events := c.GetWorkflowHistory(ctx, id, "", false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for events.HasNext() {
		event, err := events.Next()
		if err != nil {
			return whole, fmt.Errorf("history of %s: %w", id, err)
		}
		at := event.GetEventTime().AsTime()
		if whole.from.IsZero() {
			whole.from = at
		}
		whole.to = at
		switch event.GetEventType() {
		case enumspb.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
			types[event.GetEventId()] = event.GetActivityTaskScheduledEventAttributes().GetActivityType().GetName()
		case enumspb.EVENT_TYPE_ACTIVITY_TASK_STARTED:
			started[event.GetActivityTaskStartedEventAttributes().GetScheduledEventId()] = at
		case enumspb.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
			end(event, event.GetActivityTaskCompletedEventAttributes().GetScheduledEventId())
		case enumspb.EVENT_TYPE_ACTIVITY_TASK_FAILED:
			end(event, event.GetActivityTaskFailedEventAttributes().GetScheduledEventId())
		case enumspb.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED:
			children = append(children, event.GetChildWorkflowExecutionStartedEventAttributes().GetWorkflowExecution().GetWorkflowId())
		default: // says nothing about time
		}
	}
	for _, child := range children {
		if _, err := t.read(ctx, c, child); err != nil {
			return whole, err
		}
	}
	return whole, nil
}

// busy returns the time in which at least one activity of these types ran.
func (t *timeline) busy(types ...string) time.Duration {
	var all []span
	for _, name := range types {
		all = append(all, t.spans[name]...)
	}
	slices.SortFunc(all, func(a, b span) int { return a.from.Compare(b.from) })
	var (
		total time.Duration
		until time.Time
	)
	for _, s := range all {
		from := s.from
		if from.Before(until) {
			from = until
		}
		total += max(s.to.Sub(from), 0)
		if s.to.After(until) {
			until = s.to
		}
	}
	return total
}

// orchestration returns the time in which none of the working activities ran.
func (t *timeline) orchestration() time.Duration {
	return t.total.to.Sub(t.total.from) - t.busy(workActivities...)
}

func (t *timeline) String() string {
	text := fmt.Sprintf("whole %.2f s", t.total.to.Sub(t.total.from).Seconds())
	for _, name := range append(slices.Clone(workActivities), otherActivities) {
		if n := len(t.spans[name]); n > 0 {
			longest := slices.MaxFunc(t.spans[name], func(a, b span) int { return cmp.Compare(a.to.Sub(a.from), b.to.Sub(b.from)) })
			text += fmt.Sprintf(", %s %.2f s (%d, longest %.2f s)", name, t.busy(name).Seconds(), n, longest.to.Sub(longest.from).Seconds())
		}
	}
	return text
}
