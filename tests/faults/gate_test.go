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

// Moment is what a worker reports of an activity, or the sandbox of a machine.
type Moment string

// Moments: the first and the last of an attempt, and its effects.
const (
	Begins Moment = "begins"
	Ends   Moment = "ends" // without an error
	Fails  Moment = "fails"
	Writes Moment = Moment(write)
	Reads  Moment = Moment(read)
	Beats  Moment = Moment(beat)
)

// Event is one moment of an activity. The worker goes on when it is answered.
type Event struct {
	Activity, Phase, Node string
	Workflow, ID          string
	Moment                Moment
	Evicted               string // pod whose eviction the API server has just accepted
}

func (e Event) key() string { return e.Workflow + " " + e.ID }

// Answer lets the worker go on.
type Answer struct {
	Lost bool // what the API server has just answered does not arrive
}

// gate hears every moment of every activity of one operation, keeps them as the
// trace of the run, and holds the one at the armed point while the fault strikes.
type gate struct {
	mu        sync.Mutex
	operation string
	trace     []*execution
	known     map[string]*execution // by Event.key
	active    map[string]*execution // those whose activity runs
	evicted   map[string]int        // accepted evictions by pod
	armed     *point                // nil: let everything pass
	strike    func(node string) Answer
	struck    bool

	listener net.Listener
}

// newGate listens on a socket file.
func newGate(socket string) (*gate, error) {
	l, err := net.Listen("unix", socket) //nolint:noctx // a socket file, at once
	if err != nil {
		return nil, err
	}
	g := &gate{listener: l}
	server := rpc.NewServer()
	if err := server.RegisterName("Gate", &door{g}); err != nil {
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
	return g, nil
}

func (g *gate) close() error { return g.listener.Close() }

// arm begins the trace of an operation. strike is called once, at the point, with
// the node that the step is at.
func (g *gate) arm(operation string, p *point, strike func(node string) Answer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.operation, g.trace, g.armed, g.strike, g.struck = operation, nil, p, strike, false
	g.known, g.active, g.evicted = map[string]*execution{}, map[string]*execution{}, map[string]int{}
}

// account is what the gate has seen of an operation.
type account struct {
	Trace  []execution
	Struck bool     // the fault
	Twice  []string // pods whose eviction was accepted more than once
}

// disarm ends the account of an operation.
func (g *gate) disarm() account {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := account{Struck: g.struck}
	for _, e := range g.trace {
		a.Trace = append(a.Trace, *e)
	}
	for _, pod := range slices.Sorted(maps.Keys(g.evicted)) {
		if g.evicted[pod] > 1 {
			a.Twice = append(a.Twice, pod)
		}
	}
	g.operation, g.armed = "", nil
	return a
}

// door is what workers call.
type door struct{ *gate }

// At is called at each moment of an activity.
func (d *door) At(e Event, a *Answer) error {
	*a = d.hear(e)
	return nil
}

func (g *gate) hear(e Event) Answer {
	g.mu.Lock()
	if g.operation == "" || e.Workflow != g.operation && !strings.HasPrefix(e.Workflow, g.operation+"/") {
		g.mu.Unlock()
		return Answer{} // of another operation, or a reconciler
	}
	exec := g.known[e.key()]
	if exec == nil {
		exec = g.begin(e)
	}
	var now when
	switch e.Moment {
	case Begins:
		g.active[e.key()] = exec
		now = before
	case Ends, Fails:
		delete(g.active, e.key())
		if e.Moment == Ends {
			now = after
		}
	default:
		exec.Effects[effect(e.Moment)] = true
		now = inside
		if e.Evicted != "" {
			g.evicted[e.Evicted]++
		}
	}
	return g.pass(exec, now, effect(e.Moment))
}

// begin makes a new execution of a step known.
func (g *gate) begin(e Event) *execution {
	exec := &execution{Step: step{e.Activity, e.Phase}, Node: e.Node, Effects: map[effect]bool{}, Ordinal: 1}
	for _, other := range g.trace {
		if other.Step == exec.Step {
			exec.Ordinal++
		}
	}
	g.known[e.key()] = exec
	g.trace = append(g.trace, exec)
	return exec
}

// pass lets the fault strike if this is the point. The gate is locked, and open
// when it returns.
func (g *gate) pass(e *execution, now when, how effect) Answer {
	p := g.armed
	here := p != nil && !g.struck && e.Step == p.Step && e.Ordinal == p.Ordinal && now == p.When && (now != inside || how == p.Effect)
	if !here {
		g.mu.Unlock()
		return Answer{}
	}
	g.struck = true
	strike := g.strike
	g.mu.Unlock()
	return strike(e.Node)
}

// tapped hears from the sandbox that a machine has done something, and takes it
// for an effect of the activity that runs at its node.
func (g *gate) tapped(node string, how effect) {
	g.mu.Lock()
	for _, exec := range g.active {
		if exec.Node == node {
			exec.Effects[how] = true
			g.pass(exec, inside, how)
			return
		}
	}
	g.mu.Unlock()
}
