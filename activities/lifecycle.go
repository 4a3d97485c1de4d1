package activities

import (
	"context"
	"errors"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
)

// heartbeatInterval is how often a long activity says that it lives, and so how
// fresh the progress is that a user sees.
const heartbeatInterval = time.Second

// keepAlive heartbeats with the latest details until the returned function is called.
func keepAlive(ctx context.Context, details func() any) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(heartbeatInterval)
		defer ticker.Stop()
		for {
			activity.RecordHeartbeat(ctx, details())
			select {
			case <-done:
				return
			case <-ticker.C:
			}
		}
	}()
	return func() { close(done); <-ended }
}

// TypeWorkerStopping is the type of the error by which an activity hands over to
// another worker.
const TypeWorkerStopping = "WorkerStopping"

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
		return nil, temporal.NewApplicationErrorWithOptions(errStopping.Error(), TypeWorkerStopping,
			temporal.ApplicationErrorOptions{NextRetryDelay: time.Millisecond})
	}
	return out, classify(err)
}
