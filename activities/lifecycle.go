package activities

import (
	"context"
	"errors"
	"time"

	"ebb/internal/operation"
	"ebb/internal/wait"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
)

// heartbeatInterval is how often a long activity says that it lives, and so how
// fresh the progress is that a user sees.
const heartbeatInterval = time.Second

// keepAlive heartbeats with the latest details, at once and then every
// heartbeatInterval, until the returned function is called.
func keepAlive(ctx context.Context, details func() any) (stop func()) {
	beat := func() { activity.RecordHeartbeat(ctx, details()) }
	beat()
	return wait.Every(heartbeatInterval, beat)
}

// errStopping ends an activity whose worker shuts down. It is retried at once,
// on another worker, which goes on from the last heartbeat.
var errStopping = errors.New("this worker is stopping, another one goes on")

// Interceptor stands around every activity: it ends the activity when its worker
// stops, and classifies its error on the way out.
type Interceptor struct {
	interceptor.WorkerInterceptorBase
}

// InterceptActivity implements interceptor.WorkerInterceptor.
func (*Interceptor) InterceptActivity(_ context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	return &edge{interceptor.ActivityInboundInterceptorBase{Next: next}}
}

type edge struct {
	interceptor.ActivityInboundInterceptorBase
}

// ExecuteActivity implements interceptor.ActivityInboundInterceptor.
func (e *edge) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stopping := activity.GetWorkerStopChannel(ctx)
	go func() {
		select {
		case <-stopping:
			cancel(errStopping)
		case <-ctx.Done():
		}
	}()
	out, err := e.Next.ExecuteActivity(ctx, in)
	if err != nil && errors.Is(context.Cause(ctx), errStopping) {
		return nil, temporal.NewApplicationErrorWithOptions(errStopping.Error(), operation.TypeWorkerStopping,
			temporal.ApplicationErrorOptions{NextRetryDelay: time.Millisecond})
	}
	return out, classify(err)
}
