package faults

import (
	"errors"
	"maps"
	"net"
	"net/rpc"
	"slices"
	"strings"
	"sync"
)

// EventKind is what a worker reports of an activity.
type EventKind string

// Kinds of events: the start and the end of an attempt, and its effects.
const (
	AttemptStarted   EventKind = "begins"
	AttemptSucceeded EventKind = "ends"
	AttemptFailed    EventKind = "fails"
	APIWrite         EventKind = EventKind(write)
	APIRead          EventKind = EventKind(read)
	Heartbeat        EventKind = EventKind(heartbeat)
)

// Event is something that an activity does. The worker goes on when it has the reply.
type Event struct {
	Activity, Phase, Node string
	Workflow, ID          string
	Kind                  EventKind
	Evicted               string // pod whose eviction the API server has just accepted
}

func (e Event) key() string { return e.Workflow + " " + e.ID }

// Reply lets the worker go on.
type Reply struct {
	DropResponse bool // the activity does not get the response of the API server
}

// injector is told every event of every activity of one operation, keeps what was
// executed as the trace of the run, and injects the fault at its point: the worker
// has no reply to that event until the fault has happened.
type injector struct {
	mu         sync.Mutex
	operation  string
	trace      []*stepExecution
	executions map[string]*stepExecution // by Event.key
	active     map[string]*stepExecution // those whose activity runs
	evicted    map[string]int            // accepted evictions by pod
	armed      *point                    // nil = inject nothing
	inject     func(node string) Reply
	injected   bool

	listener net.Listener
}

// newInjector listens on a socket file.
func newInjector(socket string) (*injector, error) {
	l, err := net.Listen("unix", socket) //nolint:noctx // a socket file, at once
	if err != nil {
		return nil, err
	}
	inj := &injector{listener: l}
	server := rpc.NewServer()
	if err := server.RegisterName("Injector", &injectorService{inj}); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			go server.ServeConn(conn)
		}
	}()
	return inj, nil
}

func (inj *injector) close() error { return inj.listener.Close() }

// arm begins the trace of an operation. inject is called once, at the point, with
// the node that the step is at.
func (inj *injector) arm(operation string, p *point, inject func(node string) Reply) {
	inj.mu.Lock()
	defer inj.mu.Unlock()
	inj.operation, inj.trace, inj.armed, inj.inject, inj.injected = operation, nil, p, inject, false
	inj.executions, inj.active, inj.evicted = map[string]*stepExecution{}, map[string]*stepExecution{}, map[string]int{}
}

// observation is what the injector has seen of an operation.
type observation struct {
	Trace        []stepExecution
	Injected     bool     // the fault was
	EvictedTwice []string // pods whose eviction was accepted more than once
}

// disarm ends the trace of an operation and returns what was seen of it.
func (inj *injector) disarm() observation {
	inj.mu.Lock()
	defer inj.mu.Unlock()
	seen := observation{Injected: inj.injected}
	for _, e := range inj.trace {
		seen.Trace = append(seen.Trace, *e)
	}
	for _, pod := range slices.Sorted(maps.Keys(inj.evicted)) {
		if inj.evicted[pod] > 1 {
			seen.EvictedTwice = append(seen.EvictedTwice, pod)
		}
	}
	inj.operation, inj.armed = "", nil
	return seen
}

// injectorService is what workers call.
type injectorService struct{ *injector }

// Report is called at each event of an activity.
func (s *injectorService) Report(e Event, r *Reply) error {
	*r = s.handle(e)
	return nil
}

func (inj *injector) handle(e Event) Reply {
	inj.mu.Lock()
	if inj.operation == "" || e.Workflow != inj.operation && !strings.HasPrefix(e.Workflow, inj.operation+"/") {
		inj.mu.Unlock()
		return Reply{} // of another operation, or a reconciler
	}
	exec := inj.executions[e.key()]
	if exec == nil {
		exec = inj.startExecution(e)
	}
	var now timing
	switch e.Kind {
	case AttemptStarted:
		inj.active[e.key()] = exec
		now = before
	case AttemptSucceeded, AttemptFailed:
		delete(inj.active, e.key())
		if e.Kind == AttemptSucceeded {
			now = after
		}
	default:
		exec.Effects[effect(e.Kind)] = true
		now = inside
		if e.Evicted != "" {
			inj.evicted[e.Evicted]++
		}
	}
	return inj.injectAt(exec, now, effect(e.Kind))
}

// startExecution adds an execution of a step to the trace.
func (inj *injector) startExecution(e Event) *stepExecution {
	exec := &stepExecution{Step: step{e.Activity, e.Phase}, Node: e.Node, Effects: map[effect]bool{}, Ordinal: 1}
	for _, other := range inj.trace {
		if other.Step == exec.Step {
			exec.Ordinal++
		}
	}
	inj.executions[e.key()] = exec
	inj.trace = append(inj.trace, exec)
	return exec
}

// injectAt injects the fault if this is the point. The injector is locked, and not
// locked any more when it returns.
func (inj *injector) injectAt(e *stepExecution, now timing, how effect) Reply {
	p := inj.armed
	here := p != nil && !inj.injected && e.Step == p.Step && e.Ordinal == p.Ordinal && now == p.When && (now != inside || how == p.Effect)
	if !here {
		inj.mu.Unlock()
		return Reply{}
	}
	inj.injected = true
	inject := inj.inject
	inj.mu.Unlock()
	return inject(e.Node)
}

// machineActed is called by the sandbox when a command has ended on a machine or
// the infrastructure has done something to it. That is an effect of the activity
// that runs at its node.
func (inj *injector) machineActed(node string, how effect) {
	inj.mu.Lock()
	for _, exec := range inj.active {
		if exec.Node == node {
			exec.Effects[how] = true
			inj.injectAt(exec, inside, how)
			return
		}
	}
	inj.mu.Unlock()
}
