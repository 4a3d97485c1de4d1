package api

import (
	"context"
	"reflect"
	"strconv"
	"sync"
	"time"

	"ebb/internal/clusterstate"
	"ebb/internal/forecast"
	"ebb/internal/ops"
	"ebb/internal/plan"
	"ebb/workflows"
)

// fakeOperations keeps operations in memory. What an engine does is proved in
// internal/ops and tests/gateway; here the point is HTTP.
type fakeOperations struct {
	mu      sync.Mutex
	changed chan struct{} // closed by the next change
	ops     map[string]ops.Operation
	events  map[string][]ops.Event
	steered []ops.Steering
	started int
	failing error // what every call fails with

	entered chan struct{} // gets one for each start that then waits at the gate
	gate    chan struct{} // nil = nothing waits
	stuck   bool          // a start at the gate does not end with its context
}

var _ Operations = (*fakeOperations)(nil)

func newFakeOperations() *fakeOperations {
	return &fakeOperations{changed: make(chan struct{}), ops: map[string]ops.Operation{}, events: map[string][]ops.Event{}, entered: make(chan struct{}, 100)}
}

// change runs f and tells everybody who waits.
func (f *fakeOperations) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeOperations) add(id, cluster string, state ops.State) {
	f.change(func() {
		f.ops[id] = ops.Operation{
			Request: ops.Request{ID: id, Kind: workflows.KindDrain, Cluster: cluster, Nodes: []string{"w1"}}, State: state,
			Started: time.Date(2026, 12, 1, 1, 2, 3+len(f.ops), 0, time.UTC),
		}
	})
}

func (f *fakeOperations) finish() {
	const id = "op-1"
	f.change(func() {
		op := f.ops[id]
		op.State, op.Message = ops.Done, "drained"
		f.ops[id] = op
	})
}

func (f *fakeOperations) say(texts ...string) {
	const id = "op-1"
	f.change(func() {
		for _, text := range texts {
			seq := strconv.Itoa(len(f.events[id]) + 1)
			f.events[id] = append(f.events[id], ops.Event{Seq: seq, Type: ops.LogEvent, Text: text, Time: time.Unix(1, 0).UTC()})
		}
	})
}

// fails is what every call fails with, nil = none does.
func (f *fakeOperations) fails() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failing
}

// pass waits at the gate, if there is one.
func (f *fakeOperations) pass(ctx context.Context) error {
	f.mu.Lock()
	gate, failing := f.gate, f.failing
	stuck := f.stuck
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

func (f *fakeOperations) Start(ctx context.Context, r ops.Request) (ops.Operation, bool, error) {
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
			f.started++
			op = ops.Operation{Request: r, State: ops.Running, Started: time.Unix(1, 0).UTC()}
			f.ops[r.ID] = op
		}
	})
	if there && !reflect.DeepEqual(op.Request, r) {
		return op, false, &ops.ConflictError{ID: r.ID, Exists: op.Request, Asked: r}
	}
	return op, !there, nil
}

func (f *fakeOperations) Get(_ context.Context, id string) (ops.Operation, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	op, ok := f.ops[id]
	if !ok {
		return op, &ops.UnknownError{ID: id}
	}
	return op, f.failing
}

func (f *fakeOperations) Request(ctx context.Context, id string) (ops.Request, error) {
	op, err := f.Get(ctx, id)
	return op.Request, err
}

func (f *fakeOperations) List(_ context.Context, filter ops.Filter) ([]ops.Operation, error) {
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

func (f *fakeOperations) Cancel(_ context.Context, id string) error {
	f.change(func() {
		op := f.ops[id]
		op.Cancelling = true
		f.ops[id] = op
	})
	return nil
}

func (f *fakeOperations) Steer(_ context.Context, id string, s ops.Steering) (string, error) {
	if err := f.fails(); err != nil {
		return "", err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ops[id].State.Over() {
		return "", &ops.NotNowError{ID: id, Reason: "it is over"}
	}
	f.steered = append(f.steered, s)
	return "as you say", nil
}

func (f *fakeOperations) Events(ctx context.Context, id string, filter ops.EventFilter, each func(ops.Event) error) error {
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

func (f *fakeOperations) Watch(ctx context.Context, id string, changed func(ops.Operation)) error {
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

// fakeClusters knows prod and dev.
type fakeClusters struct{ asked forecast.Question }

var _ forecast.Clusters = (*fakeClusters)(nil)

func (f *fakeClusters) List(context.Context) ([]forecast.Overview, error) {
	return []forecast.Overview{overview, {Cluster: "dev", Error: "refused"}}, nil
}

var overview = forecast.Overview{
	Cluster: "prod", Record: clusterstate.Record{State: clusterstate.Running, Version: "1.37.2"}, Nodes: []plan.Node{{Name: "w1", Role: plan.Worker, Version: "v1.37.2", Ready: true}},
}

// Look implements forecast.Clusters.
func (f *fakeClusters) Look(_ context.Context, name string) (forecast.Overview, error) {
	if name != "prod" {
		return forecast.Overview{}, &forecast.UnknownClusterError{Name: name}
	}
	return overview, nil
}

func (f *fakeClusters) Plan(_ context.Context, q forecast.Question) (forecast.Forecast, error) {
	if q.Cluster != "prod" && q.Cluster != "dev" {
		return forecast.Forecast{}, &forecast.UnknownClusterError{Name: q.Cluster, Known: []string{"prod", "dev"}}
	}
	f.asked = q
	return forecast.Forecast{Cluster: q.Cluster, State: "Running", Version: "1.36.3", Parallel: 1}, nil
}
