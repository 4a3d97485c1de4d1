package server

import (
	"context"
	"sync"
	"time"

	"ebb/internal/api/wire"
)

// drainPolicy says how a route behaves while the server is Cordoned.
type drainPolicy string

const (
	alwaysServed           drainPolicy = "always served"            // health, lifecycle, metrics: as long as there is a listener
	servedUntilTerminating drainPolicy = "served until Terminating" // status and cancellation of an operation: not waited for
	rejectedWhenCordoned   drainPolicy = "rejected when Cordoned"   // everything else: 503, so that another gateway does it
	streamUntilCordoned    drainPolicy = "stream until Cordoned"    // events: open streams end with a retry line, new ones with follow=true get 503
)

// maxReserve limits the part of the grace period that is kept for the responses of
// cancelled requests and for closing connections, before the process is killed.
const maxReserve = 5 * time.Second

// drainDeadlines are the deadlines of a shutdown.
type drainDeadlines struct {
	requests    time.Time // for requests in flight; then they are cancelled
	responses   time.Time // for the responses of those that were cancelled
	connections time.Time // for open connections; then they are closed
}

// drainDeadlinesFor returns the deadlines after a signal. A sixth of the grace period,
// at most maxReserve, is kept in reserve: half of it for responses, and half of the
// rest for connections.
func drainDeadlinesFor(signal time.Time, grace time.Duration) drainDeadlines {
	deadline, reserve := signal.Add(grace), min(maxReserve, grace/6)
	return drainDeadlines{requests: deadline.Add(-reserve), responses: deadline.Add(-reserve / 2), connections: deadline.Add(-reserve / 4)}
}

// lifecycle is the state of a server: Serving, perhaps Leaving, Cordoned, then Terminating. It counts
// the requests in flight, so that a shutdown can wait for them.
type lifecycle struct {
	mu           sync.Mutex
	state        wire.ServerState
	shuttingDown bool // cordoned by a signal, which cannot be undone
	inFlight     int  // requests
	blocking     int  // those of them that a shutdown waits for
	streams      *slots
	drained      chan struct{}   // closed when blocking is 0; nil unless somebody waits
	cordoned     context.Context // ends when the server is cordoned; a new one is made by Uncordon
	cordon       context.CancelFunc

	graceEnded     context.Context // ends when requests in flight are to be cancelled
	endGrace       context.CancelCauseFunc
	background     func(context.Context) // runs while Serving
	backgroundDone sync.WaitGroup
}

// newLifecycle returns a lifecycle that is Serving. background is run in a goroutine
// while it is; its context ends when the server is cordoned.
func newLifecycle(background func(context.Context)) *lifecycle {
	l := &lifecycle{state: wire.Serving, background: background, streams: newSlots()}
	l.graceEnded, l.endGrace = context.WithCancelCause(context.Background())
	l.startServing()
	return l
}

// startServing makes the context that ends with the next cordon, and starts the
// background work. The caller holds mu, or is the constructor.
func (l *lifecycle) startServing() {
	l.cordoned, l.cordon = context.WithCancel(context.Background())
	ctx := l.cordoned
	l.backgroundDone.Go(func() { l.background(ctx) })
}

// Leave makes the server say that it is not ready, and close connections after each answer,
// while it serves as before. It reports whether the state has changed.
func (l *lifecycle) Leave() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != wire.Serving {
		return false
	}
	l.state = wire.Leaving
	return true
}

// Cordon ends the streams and the background work, and makes admit reject new requests.
// final means that it is for a shutdown and cannot be undone. It reports whether the
// state has changed.
func (l *lifecycle) Cordon(final bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shuttingDown = l.shuttingDown || final
	if l.state != wire.Serving && l.state != wire.Leaving {
		return false
	}
	l.state = wire.Cordoned
	l.cordon()
	return true
}

// Uncordon makes the server Serving again; ok is false if it is being shut down.
func (l *lifecycle) Uncordon() (ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.shuttingDown:
		return false
	case l.state == wire.Leaving:
		l.state = wire.Serving
	case l.state == wire.Cordoned:
		l.state = wire.Serving
		l.startServing()
	}
	return true
}

// admit counts a request, or returns ok = false if it is to be rejected. follow says
// that it is a stream with follow=true. cordoned ends when the server is cordoned;
// leave must be called when the request is done.
func (l *lifecycle) admit(policy drainPolicy, follow bool) (cordoned context.Context, leave func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case policy == alwaysServed:
		return l.cordoned, func() {}, true
	case l.state == wire.Terminating,
		l.state == wire.Cordoned && (policy == rejectedWhenCordoned || policy == streamUntilCordoned && follow):
		return nil, nil, false
	}
	// A shutdown does not wait for status requests: clients that poll would delay it
	// for the whole grace period.
	blocking := policy != servedUntilTerminating
	l.inFlight++
	if blocking {
		l.blocking++
	}
	return l.cordoned, func() { l.leave(blocking) }, true
}

func (l *lifecycle) leave(blocking bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inFlight--
	if blocking {
		l.blocking--
	}
	if l.blocking == 0 && l.drained != nil {
		close(l.drained)
		l.drained = nil
	}
}

// Drained returns a channel that is closed when no request is waited for. Call it after
// Cordon: while the server is Serving, new requests may come at any time.
func (l *lifecycle) Drained() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.blocking == 0 {
		done := make(chan struct{})
		close(done)
		return done
	}
	if l.drained == nil {
		l.drained = make(chan struct{})
	}
	return l.drained
}

// CancelInFlight cancels the contexts of all requests with the cause errGraceEnded.
func (l *lifecycle) CancelInFlight() { l.endGrace(errGraceEnded) }

// Terminate makes admit reject all requests but those that are always served.
func (l *lifecycle) Terminate() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state, l.shuttingDown = wire.Terminating, true
	l.cordon()
}

// status returns the state and the numbers of requests and streams.
func (l *lifecycle) status() wire.Lifecycle {
	l.mu.Lock()
	defer l.mu.Unlock()
	return wire.Lifecycle{State: l.state, Running: l.inFlight, Streams: l.streams.taken()}
}

// withGrace returns a context that ends with ctx or by CancelInFlight; context.Cause
// tells which.
func (l *lifecycle) withGrace(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.graceEnded, func() { cancel(context.Cause(l.graceEnded)) })
	return ctx, func() {
		stop()
		cancel(context.Canceled)
	}
}
