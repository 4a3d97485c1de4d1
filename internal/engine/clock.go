package engine

import (
	"context"
	"time"

	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// scheduledByThisClock is a gRPC interceptor for a worker whose clock is not the engine's. The SDK
// ends an activity at the time of its schedule plus its whole timeout, by the worker's
// clock: one that is minutes ahead would end each at once. So the time of the schedule is
// told as this clock would have shown it; what activities are told of their start stays.
func scheduledByThisClock(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if err := invoke(ctx, method, req, reply, conn, opts...); err != nil {
		return err
	}
	switch reply := reply.(type) {
	case *workflowservice.PollActivityTaskQueueResponse:
		reschedule(reply, time.Now())
	case *workflowservice.RespondWorkflowTaskCompletedResponse:
		for _, task := range reply.GetActivityTasks() {
			reschedule(task, time.Now())
		}
	}
	return nil
}

// reschedule moves the schedule of a task as far before now as it was before its start.
func reschedule(task *workflowservice.PollActivityTaskQueueResponse, now time.Time) {
	if task.GetStartedTime() == nil || task.GetScheduledTime() == nil {
		return // there was no task
	}
	ago := task.GetStartedTime().AsTime().Sub(task.GetScheduledTime().AsTime())
	task.ScheduledTime = timestamppb.New(now.Add(-ago))
}
