package server

import (
	"context"
	"sync"

	"ebb/internal/ops"
)

// watches share one look at the engine among all who watch the same operation, because
// each look asks the engine several times a second.
type watches struct {
	operations ops.Client

	mu   sync.Mutex
	open map[string]*sharedWatch // by operation ID
}

// sharedWatch is what is known of an operation that is watched. The mutex of watches
// guards it.
type sharedWatch struct {
	watchers int
	cancel   context.CancelFunc
	last     ops.Operation
	version  int           // of last; 0 = nothing is known yet
	changed  chan struct{} // closed when something of this changes
	ended    bool
	err      error // with which it has ended
}

func newWatches(operations ops.Client) *watches {
	return &watches{operations: operations, open: map[string]*sharedWatch{}}
}

// Watch is that of ops.Client. A watcher that is slow misses states that are past.
func (w *watches) Watch(ctx context.Context, id string, changed func(ops.Operation)) error {
	shared := w.join(id)
	defer w.leave(id, shared)
	for seen := 0; ; {
		w.mu.Lock()
		now := *shared
		w.mu.Unlock()
		if now.version > seen {
			seen = now.version
			changed(now.last)
		}
		if now.ended {
			return now.err
		}
		select {
		case <-now.changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// join returns the watch of an operation, which begins with its first watcher.
func (w *watches) join(id string) *sharedWatch {
	w.mu.Lock()
	defer w.mu.Unlock()
	shared, ok := w.open[id]
	if !ok {
		ctx, cancel := context.WithCancel(context.Background()) // that of no watcher: the others stay
		shared = &sharedWatch{cancel: cancel, changed: make(chan struct{})}
		w.open[id] = shared
		go w.run(ctx, id, shared)
	}
	shared.watchers++
	return shared
}

// leave ends the watch with its last watcher.
func (w *watches) leave(id string, shared *sharedWatch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if shared.watchers--; shared.watchers == 0 {
		shared.cancel()
		w.forget(id, shared)
	}
}

// forget has the next watcher look anew. The caller holds mu.
func (w *watches) forget(id string, shared *sharedWatch) {
	if w.open[id] == shared {
		delete(w.open, id)
	}
}

// run watches an operation for all its watchers.
func (w *watches) run(ctx context.Context, id string, shared *sharedWatch) {
	err := w.operations.Watch(ctx, id, func(op ops.Operation) {
		w.change(shared, func() { shared.last, shared.version = op, shared.version+1 })
	})
	w.change(shared, func() {
		shared.ended, shared.err = true, err
		w.forget(id, shared)
	})
}

// change changes a watch and wakes its watchers.
func (w *watches) change(shared *sharedWatch, do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do()
	close(shared.changed)
	shared.changed = make(chan struct{})
}
