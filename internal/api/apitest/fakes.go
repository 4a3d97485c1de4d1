// Package apitest is for tests of the API: operations and clusters without an
// engine, and an OpenID Connect issuer.
package apitest

import (
	"context"
	"reflect"
	"strconv"
	"sync"
	"time"

	"ebb/internal/clusterstate"
	"ebb/internal/forecast"
	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/internal/policy"
)

// Operations keeps operations in memory and implements ops.Client. The behaviour of an
// engine is tested in internal/ops and tests/gateway, that of HTTP here.
type Operations struct {
	mu      sync.Mutex
	changed chan struct{} // closed by the next change
	ops     map[string]ops.Operation
	events  map[string][]ops.Event
	Steered []ops.Steering // what Steer was called with
	Watched int            // how often Watch was called
	Started int            // the number of operations that Start has started
	failing error          // the error of every call, if any

	entered chan struct{} // gets a value for each Start that is held
	gate    chan struct{} // closed to let them go on; nil = Start is not held
	Stuck   bool          // a Start that is held does not return when its context ends
}

// NewOperations returns an empty set.
func NewOperations() *Operations {
	return &Operations{changed: make(chan struct{}), ops: map[string]ops.Operation{}, events: map[string][]ops.Event{}, entered: make(chan struct{}, 100)}
}

// change runs do and wakes all streams and waits.
func (f *Operations) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
	close(f.changed)
	f.changed = make(chan struct{})
}

// Add adds a drain of the node w1.
func (f *Operations) Add(id, cluster string, state ops.State) {
	f.change(func() {
		f.ops[id] = ops.Operation{
			Request: ops.Request{ID: id, Kind: operation.KindDrain, Cluster: cluster, Nodes: []string{"w1"}}, State: state,
			Started: time.Date(2026, 12, 1, 1, 2, 3+len(f.ops), 0, time.UTC),
		}
	})
}

// Finish ends the operation op-1.
func (f *Operations) Finish() {
	const id = "op-1"
	f.change(func() {
		op := f.ops[id]
		op.State, op.Message = ops.Done, "drained"
		f.ops[id] = op
	})
}

// Say adds log events to the operation op-1.
func (f *Operations) Say(texts ...string) {
	const id = "op-1"
	f.change(func() {
		for _, text := range texts {
			seq := strconv.Itoa(len(f.events[id]) + 1)
			f.events[id] = append(f.events[id], ops.Event{Seq: seq, Type: ops.LogEvent, Text: text, Time: time.Unix(1, 0).UTC()})
		}
	})
}

// Hold makes every Start block until open is called. waiting gets a value for each that
// blocks.
func (f *Operations) Hold() (waiting <-chan struct{}, open func()) {
	gate := make(chan struct{})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gate = gate
	return f.entered, func() {
		f.mu.Lock()
		f.gate = nil
		f.mu.Unlock()
		close(gate)
	}
}

// Fail makes every call fail with err.
func (f *Operations) Fail(err error) { f.change(func() { f.failing = err }) }

// fails returns the error of every call, nil if there is none.
func (f *Operations) fails() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failing
}

// pass blocks while Start is held.
func (f *Operations) pass(ctx context.Context) error {
	f.mu.Lock()
	gate, failing := f.gate, f.failing
	stuck := f.Stuck
	f.mu.Unlock()
	if failing != nil || gate == nil {
		return failing
	}
	f.entered <- struct{}{}
	done := ctx.Done()
	if stuck {
		done = nil
	}
	select {
	case <-gate:
		return nil
	case <-done:
		return ctx.Err()
	}
}

// Start implements ops.Client.
func (f *Operations) Start(ctx context.Context, r ops.Request) (ops.Operation, bool, error) {
	if err := r.Validate(); err != nil {
		return ops.Operation{}, false, err
	}
	if err := f.pass(ctx); err != nil {
		return ops.Operation{}, false, err
	}
	var (
		op    ops.Operation
		there bool
	)
	f.change(func() {
		if op, there = f.ops[r.ID]; !there {
			f.Started++
			op = ops.Operation{Request: r, State: ops.Running, Started: time.Unix(1, 0).UTC()}
			f.ops[r.ID] = op
		}
	})
	if there && !reflect.DeepEqual(op.Request, r) {
		return op, false, &ops.ConflictError{ID: r.ID, Exists: op.Request, Asked: r}
	}
	return op, !there, nil
}

// Get implements ops.Client.
func (f *Operations) Get(_ context.Context, id string) (ops.Operation, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	op, ok := f.ops[id]
	if !ok {
		return op, &ops.UnknownError{ID: id}
	}
	return op, f.failing
}

// Request returns what an operation was asked to do.
func (f *Operations) Request(ctx context.Context, id string) (ops.Request, error) {
	op, err := f.Get(ctx, id)
	return op.Request, err
}

// List implements ops.Client.
func (f *Operations) List(_ context.Context, filter ops.Filter) ([]ops.Operation, error) {
	if err := f.fails(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var found []ops.Operation
	for _, op := range f.ops {
		if (filter.Cluster == "" || filter.Cluster == op.Cluster) && (!filter.Open || !op.State.Over()) {
			found = append(found, op)
		}
	}
	return found, nil
}

// Cancel implements ops.Client.
func (f *Operations) Cancel(_ context.Context, id string) error {
	f.change(func() {
		op := f.ops[id]
		op.Cancelling = true
		f.ops[id] = op
	})
	return nil
}

// Steer implements ops.Client.
func (f *Operations) Steer(_ context.Context, id string, s ops.Steering) (string, error) {
	if err := f.fails(); err != nil {
		return "", err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ops[id].State.Over() {
		return "", &ops.NotNowError{ID: id, Reason: "it is over"}
	}
	f.Steered = append(f.Steered, s)
	return "as you say", nil
}

// Events implements ops.Client.
func (f *Operations) Events(ctx context.Context, id string, filter ops.EventFilter, each func(ops.Event) error) error {
	next := 0
	if filter.After != "" {
		var err error
		if next, err = strconv.Atoi(filter.After); err != nil {
			return &ops.RequestError{Faults: []string{"no such place: " + filter.After}}
		}
	}
	for {
		f.mu.Lock()
		events, op, changed := f.events[id], f.ops[id], f.changed
		f.mu.Unlock()
		for ; next < len(events); next++ {
			if err := each(events[next]); err != nil {
				return err
			}
		}
		if op.State.Over() || !filter.Follow {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Watch implements ops.Client.
func (f *Operations) Watch(ctx context.Context, id string, changed func(ops.Operation)) error {
	f.mu.Lock()
	f.Watched++
	f.mu.Unlock()
	for {
		f.mu.Lock()
		op, again := f.ops[id], f.changed
		f.mu.Unlock()
		changed(op)
		if op.State.Over() {
			return nil
		}
		select {
		case <-again:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Clusters are the clusters prod and dev.
type Clusters struct {
	Asked  forecast.Question // the last question to Plan
	Looked []string          // the clusters that List and Among have looked at
	Hold   chan struct{}     // if not nil, Plan blocks until it is closed
}

var _ forecast.Clusters = (*Clusters)(nil)

// List implements forecast.Clusters.
func (f *Clusters) List(ctx context.Context) ([]forecast.Overview, error) {
	return f.Among(ctx, func(string) bool { return true })
}

// Among is List of some clusters.
func (f *Clusters) Among(_ context.Context, which func(name string) bool) (found []forecast.Overview, _ error) {
	for _, o := range []forecast.Overview{Overview, {Cluster: "dev", Error: "refused"}} {
		if which(o.Cluster) {
			f.Looked, found = append(f.Looked, o.Cluster), append(found, o)
		}
	}
	return found, nil
}

// Overview is that of the cluster prod.
var Overview = forecast.Overview{
	Cluster: "prod", Record: clusterstate.Record{State: clusterstate.Running, Version: "1.37.2"}, Nodes: []policy.Node{{Name: "w1", Role: policy.Worker, Version: "1.37.2", Ready: true}},
}

// Look implements forecast.Clusters.
func (f *Clusters) Look(_ context.Context, name string) (forecast.Overview, error) {
	if name != "prod" {
		return forecast.Overview{}, &forecast.UnknownClusterError{Name: name}
	}
	return Overview, nil
}

// Plan implements forecast.Clusters.
func (f *Clusters) Plan(_ context.Context, q forecast.Question) (forecast.Forecast, error) {
	if q.Cluster != "prod" && q.Cluster != "dev" {
		return forecast.Forecast{}, &forecast.UnknownClusterError{Name: q.Cluster, Known: []string{"prod", "dev"}}
	}
	if f.Hold != nil {
		<-f.Hold
	}
	f.Asked = q
	return forecast.Forecast{Cluster: q.Cluster, State: "Running", Version: "1.36.3", Parallel: 1}, nil
}
