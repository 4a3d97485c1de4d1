package engine

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"ebb/internal/embedded"
)

// engineBehind has the engine's clock be behind this one by so much: what it says of
// activities is.
func engineBehind(by time.Duration) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := invoke(ctx, method, req, reply, conn, opts...)
		tasks := []*workflowservice.PollActivityTaskQueueResponse{}
		switch reply := reply.(type) {
		case *workflowservice.PollActivityTaskQueueResponse:
			tasks = append(tasks, reply)
		case *workflowservice.RespondWorkflowTaskCompletedResponse:
			tasks = reply.GetActivityTasks()
		}
		for _, task := range tasks {
			if task.GetStartedTime() != nil {
				task.ScheduledTime = timestamppb.New(task.GetScheduledTime().AsTime().Add(-by))
				task.StartedTime = timestamppb.New(task.GetStartedTime().AsTime().Add(-by))
			}
		}
		return err
	}
}

// timeLeft is how long an activity has by the clock of its worker.
func timeLeft(ctx context.Context) (time.Duration, error) {
	deadline, _ := ctx.Deadline()
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if started := time.Since(activity.GetInfo(ctx).StartedTime); started < 6*time.Minute {
		return 0, context.DeadlineExceeded // the test's engine is not behind
	}
	return time.Until(deadline), nil
}

// A worker whose clock is seven minutes ahead would end each activity with a whole time of
// two minutes before it begins.
func TestActivitiesOfAWorkerWhoseClockIsAhead(t *testing.T) {
	clearTemporalEnv(t)
	server, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir(), UIPort: -1, Log: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	c, err := dial(t.Context(), zap.NewNop(), client.Options{
		HostPort: server.Address(), Namespace: server.Namespace(),
		ConnectionOptions: client.ConnectionOptions{DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(engineBehind(7 * time.Minute))}},
	})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	for _, eager := range []bool{false, true} {
		w := worker.New(c, TaskQueue, worker.Options{DisableEagerActivities: !eager})
		w.RegisterActivity(timeLeft)
		w.RegisterWorkflow(askTimeLeft)
		require.NoError(t, w.Start())
		run, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{TaskQueue: TaskQueue}, askTimeLeft)
		require.NoError(t, err)
		var left time.Duration
		require.NoError(t, run.Get(t.Context(), &left))
		require.InDelta(t, time.Minute.Seconds(), left.Seconds(), 5)
		w.Stop()
	}
}

func askTimeLeft(ctx workflow.Context) (left time.Duration, err error) {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute, ScheduleToCloseTimeout: 2 * time.Minute})
	return left, workflow.ExecuteActivity(ctx, timeLeft).Get(ctx, &left)
}
