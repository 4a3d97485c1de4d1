package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/rpc"
	"os"
	"os/signal"
	"path"
	"strings"
	"syscall"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/workflow"
	"go.uber.org/zap"
	"k8s.io/client-go/transport"

	"ebb/internal/config"
	"ebb/internal/logging"
	"ebb/internal/workers"
)

// injectorEnv names the socket of the injector. A process of this test binary that
// has it is a worker: the real one, with an interceptor and a transport that report
// what its activities do, and wait for the reply.
const injectorEnv = "EBB_FAULTS_INJECTOR"

// How soon the engine notices that a worker is dead. The product's own times (30 s
// and more for a call, 10 s for a heartbeat) only make the same run longer.
const (
	startToClose     = 8 * time.Second
	heartbeatTimeout = 5 * time.Second
)

// runWorker is the main function of a worker process.
func runWorker(socket string) error {
	log, err := logging.New("info")
	if err != nil {
		return err
	}
	client, err := rpc.Dial("unix", socket)
	if err != nil {
		return err
	}
	ctx, release := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer release()
	file, err := config.Open(config.Path(""))
	if err != nil {
		return err
	}
	r := &reporter{injector: client, log: log}
	return workers.Serve(ctx, workers.Options{
		Config: file.WithLogger(log), Log: log,
		Interceptors: []interceptor.WorkerInterceptor{r}, Transports: []transport.WrapperFunc{r.transport},
	})
}

// reporter reports to the injector.
type reporter struct {
	interceptor.WorkerInterceptorBase
	injector *rpc.Client
	log      *zap.Logger
}

// report waits for the injector's reply. Without an injector there is no test any more.
func (r *reporter) report(e Event, kind EventKind) Reply {
	var reply Reply
	e.Kind = kind
	if err := r.injector.Call("Injector.Report", e, &reply); err != nil {
		r.log.Fatal("the injector is gone", zap.Error(err))
	}
	return reply
}

// eventKey is where the context of an activity holds its event.
type eventKey struct{}

// --- activities: before, after, and heartbeats

// InterceptActivity implements interceptor.WorkerInterceptor.
func (r *reporter) InterceptActivity(_ context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	in := &inbound{reporter: r}
	in.Next = next
	return in
}

type inbound struct {
	interceptor.ActivityInboundInterceptorBase
	reporter *reporter
}

func (i *inbound) Init(out interceptor.ActivityOutboundInterceptor) error {
	o := &outbound{reporter: i.reporter}
	o.Next = out
	return i.Next.Init(o)
}

func (i *inbound) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	e, err := eventOf(ctx, in.Args)
	if err != nil {
		return nil, err
	}
	i.reporter.report(e, AttemptStarted)
	out, err := i.Next.ExecuteActivity(context.WithValue(ctx, eventKey{}, e), in)
	if err != nil {
		i.reporter.report(e, AttemptFailed)
		return out, err
	}
	i.reporter.report(e, AttemptSucceeded)
	return out, nil
}

// eventOf reads from an activity's input, as it is in the history, which node and
// which phase it is about.
func eventOf(ctx context.Context, args []any) (Event, error) {
	info := activity.GetInfo(ctx)
	e := Event{Activity: info.ActivityType.Name, Workflow: info.WorkflowExecution.ID, ID: info.WorkflowExecution.RunID + " " + info.ActivityID}
	if len(args) == 0 {
		return e, nil
	}
	body, err := json.Marshal(args[0])
	if err != nil {
		return e, err
	}
	var input struct {
		Node  json.RawMessage `json:"node"`
		Phase string          `json:"phase"`
	}
	if err := json.Unmarshal(body, &input); err != nil {
		return e, fmt.Errorf("input of %s: %w", e.Activity, err)
	}
	e.Phase = input.Phase
	var node struct {
		Name string `json:"name"`
	}
	if json.Unmarshal(input.Node, &e.Node) != nil && json.Unmarshal(input.Node, &node) == nil {
		e.Node = node.Name
	}
	return e, nil
}

type outbound struct {
	interceptor.ActivityOutboundInterceptorBase
	reporter *reporter
}

func (o *outbound) RecordHeartbeat(ctx context.Context, details ...any) {
	o.Next.RecordHeartbeat(ctx, details...)
	if e, ok := ctx.Value(eventKey{}).(Event); ok {
		o.reporter.report(e, Heartbeat)
	}
}

// --- requests to the API server

func (r *reporter) transport(next http.RoundTripper) http.RoundTripper {
	return &reportingTransport{next, r}
}

type reportingTransport struct {
	next     http.RoundTripper
	reporter *reporter
}

// RoundTrip reports each response to a request of an activity. A response that is
// dropped is what a client sees whose server is killed between the write and the
// response.
func (t *reportingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(req)
	e, ours := req.Context().Value(eventKey{}).(Event)
	if err != nil || !ours {
		return resp, err
	}
	kind := APIWrite
	if req.Method == http.MethodGet {
		kind = APIRead
	}
	if pod, ok := strings.CutSuffix(req.URL.Path, "/eviction"); ok && resp.StatusCode < http.StatusMultipleChoices {
		e.Evicted = path.Base(pod)
	}
	if t.reporter.report(e, kind).DropResponse {
		reset := &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
		return nil, errors.Join(reset, resp.Body.Close())
	}
	return resp, nil
}

// WrappedRoundTripper lets client-go see through the wrapper.
func (t *reportingTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

// --- workflows: a dead worker is noticed sooner

// InterceptWorkflow implements interceptor.WorkerInterceptor.
func (*reporter) InterceptWorkflow(_ workflow.Context, next interceptor.WorkflowInboundInterceptor) interceptor.WorkflowInboundInterceptor {
	in := &shortTimeoutsInbound{}
	in.Next = next
	return in
}

type shortTimeoutsInbound struct {
	interceptor.WorkflowInboundInterceptorBase
}

func (i *shortTimeoutsInbound) Init(out interceptor.WorkflowOutboundInterceptor) error {
	o := &shortTimeoutsOutbound{}
	o.Next = out
	return i.Next.Init(o)
}

type shortTimeoutsOutbound struct {
	interceptor.WorkflowOutboundInterceptorBase
}

func (o *shortTimeoutsOutbound) ExecuteActivity(ctx workflow.Context, activityType string, args ...any) workflow.Future {
	options := workflow.GetActivityOptions(ctx)
	if options.HeartbeatTimeout > 0 {
		ctx = workflow.WithHeartbeatTimeout(ctx, min(options.HeartbeatTimeout, heartbeatTimeout))
	} else {
		ctx = workflow.WithStartToCloseTimeout(ctx, min(options.StartToCloseTimeout, startToClose))
	}
	return o.Next.ExecuteActivity(ctx, activityType, args...)
}
