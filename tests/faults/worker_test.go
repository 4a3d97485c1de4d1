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
	"ebb/internal/engine"
	"ebb/internal/logging"
	"ebb/internal/workers"
)

// gateEnv names the socket of the gate. A process of this test binary that has it
// is a worker: the real one, with an interceptor and a transport that report what
// its activities do, and wait for the answer.
const gateEnv = "EBB_FAULTS_GATE"

// How soon the engine notices that a worker is dead. The product's own times (30 s
// and more for a call, 10 s for a heartbeat) only make the same run longer.
const (
	callLost      = 8 * time.Second
	heartbeatLost = 5 * time.Second
)

// work is the main function of a worker process.
func work(socket string) error {
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
	settings, err := engine.Resolve(engine.Options{})
	if err != nil {
		return err
	}
	temporal, err := engine.Dial(ctx, log, engine.Options{})
	if err != nil {
		return err
	}
	defer temporal.Close()
	r := &reporter{gate: client, log: log}
	w, err := workers.New(workers.Options{
		Client: temporal, Namespace: settings.Namespace, Config: file.WithLogger(log), Log: log,
		Interceptors: []interceptor.WorkerInterceptor{r}, Transports: []transport.WrapperFunc{r.transport},
	})
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// reporter reports to the gate.
type reporter struct {
	interceptor.WorkerInterceptorBase
	gate *rpc.Client
	log  *zap.Logger
}

// report waits for the gate's answer. Without a gate there is no test any more.
func (r *reporter) report(e Event, m Moment) Answer {
	var a Answer
	e.Moment = m
	if err := r.gate.Call("Gate.At", e, &a); err != nil {
		r.log.Fatal("the gate is gone", zap.Error(err))
	}
	return a
}

// eventKey is where the context of an activity holds its event.
type eventKey struct{}

// --- activities: before, after, and signs of life

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
	i.reporter.report(e, Begins)
	out, err := i.Next.ExecuteActivity(context.WithValue(ctx, eventKey{}, e), in)
	if err != nil {
		i.reporter.report(e, Fails)
		return out, err
	}
	i.reporter.report(e, Ends)
	return out, nil
}

// eventOf reads from an activity's input, as it is in the history, which node and
// which phase it is about.
func eventOf(ctx context.Context, args []any) (Event, error) {
	info := activity.GetInfo(ctx)
	e := Event{Activity: info.ActivityType.Name, Workflow: info.WorkflowExecution.ID, ID: info.ActivityID}
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
		o.reporter.report(e, Beats)
	}
}

// --- requests to the API server

func (r *reporter) transport(next http.RoundTripper) http.RoundTripper { return &tripper{next, r} }

type tripper struct {
	next     http.RoundTripper
	reporter *reporter
}

// RoundTrip reports an answered request of an activity. A lost answer is what a
// client sees whose server is killed between the write and the answer.
func (t *tripper) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(req)
	e, ours := req.Context().Value(eventKey{}).(Event)
	if err != nil || !ours {
		return resp, err
	}
	moment := Writes
	if req.Method == http.MethodGet {
		moment = Reads
	}
	if pod, ok := strings.CutSuffix(req.URL.Path, "/eviction"); ok && resp.StatusCode < http.StatusMultipleChoices {
		e.Evicted = path.Base(pod)
	}
	if t.reporter.report(e, moment).Lost {
		reset := &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
		return nil, errors.Join(reset, resp.Body.Close())
	}
	return resp, nil
}

// WrappedRoundTripper lets client-go see through the wrapper.
func (t *tripper) WrappedRoundTripper() http.RoundTripper { return t.next }

// --- workflows: a dead worker is noticed sooner

// InterceptWorkflow implements interceptor.WorkerInterceptor.
func (*reporter) InterceptWorkflow(_ workflow.Context, next interceptor.WorkflowInboundInterceptor) interceptor.WorkflowInboundInterceptor {
	in := &hasteInbound{}
	in.Next = next
	return in
}

type hasteInbound struct {
	interceptor.WorkflowInboundInterceptorBase
}

func (i *hasteInbound) Init(out interceptor.WorkflowOutboundInterceptor) error {
	o := &hasteOutbound{}
	o.Next = out
	return i.Next.Init(o)
}

type hasteOutbound struct {
	interceptor.WorkflowOutboundInterceptorBase
}

func (o *hasteOutbound) ExecuteActivity(ctx workflow.Context, activityType string, args ...any) workflow.Future {
	options := workflow.GetActivityOptions(ctx)
	if options.HeartbeatTimeout > 0 {
		ctx = workflow.WithHeartbeatTimeout(ctx, min(options.HeartbeatTimeout, heartbeatLost))
	} else {
		ctx = workflow.WithStartToCloseTimeout(ctx, min(options.StartToCloseTimeout, callLost))
	}
	return o.Next.ExecuteActivity(ctx, activityType, args...)
}
