package api

import (
	"context"
	"sync"
	"time"
)

// class is how a route behaves while the server is Cordoned.
type class string

const (
	always   class = "always"   // health, lifecycle, metrics: answered as long as there is a listener
	existing class = "existing" // looking at or cancelling what exists: served until Terminating
	fresh    class = "fresh"    // everything else: refused, so that the successor does it
	stream   class = "stream"   // event streams: open ones end with a retry line, new ones that follow are refused
)

// maxReserve is how much of the grace is kept for answering what has outlasted it
// and for closing the listeners, before somebody kills the process.
const maxReserve = 5 * time.Second

// timetable is when a server that got a signal does what.
type timetable struct {
	patience time.Time // until then what runs is waited for
	answered time.Time // until then what outlasted that may be answered
	closed   time.Time // then whatever is left is cut
}

// timetableOf keeps a reserve of a sixth of the grace, at most maxReserve: half of
// it is for answers, half of the rest for closing.
func timetableOf(signal time.Time, grace time.Duration) timetable {
	deadline, reserve := signal.Add(grace), min(maxReserve, grace/6)
	return timetable{patience: deadline.Add(-reserve), answered: deadline.Add(-reserve / 2), closed: deadline.Add(-reserve / 4)}
}

// Lifecycle is what a server is doing: Serving → Cordoned → Terminating. It counts
// what runs, so that the server knows when it may end.
type Lifecycle struct {
	mu       sync.Mutex
	state    State
	final    bool // cordoned by a signal: there is no way back
	running  int
	owed     int // of those that run: what nobody else could finish, so that it is waited for
	streams  int
	idle     chan struct{} // closed when nothing is owed any more; nil unless somebody waits
	cordoned context.Context
	cordon   context.CancelFunc

	cut    context.Context // ends when what runs has outlasted the grace
	cutNow context.CancelCauseFunc
	work   func(context.Context) // the internal work; it is started again by Uncordon
	worked sync.WaitGroup
}

// newLifecycle serves from the start. work is the internal work: it runs until its
// context ends, which is when the server is cordoned.
func newLifecycle(work func(context.Context)) *Lifecycle {
	l := &Lifecycle{state: Serving, work: work}
	l.cut, l.cutNow = context.WithCancelCause(context.Background())
	l.serve()
	return l
}

// serve makes what ends with the next cordon. The caller holds mu, or is alone.
func (l *Lifecycle) serve() {
	l.cordoned, l.cordon = context.WithCancel(context.Background())
	ctx := l.cordoned
	l.worked.Go(func() { l.work(ctx) })
}

// Cordon refuses what is new from now on, ends the streams and the internal work.
// final says that a signal has asked for it, so that it cannot be undone. It
// reports whether anything has changed.
func (l *Lifecycle) Cordon(final bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.final = l.final || final
	if l.state != Serving {
		return false
	}
	l.state = Cordoned
	l.cordon()
	return true
}

// Uncordon undoes a Cordon; ok is false when that was final.
func (l *Lifecycle) Uncordon() (ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.final:
		return false
	case l.state == Cordoned:
		l.state = Serving
		l.serve()
	}
	return true
}

// enter admits a request, or refuses it with ok = false. follows says that it is a
// stream that would go on: its end is the end of the returned context. leave must
// be called when the request is done.
func (l *Lifecycle) enter(c class, follows bool) (cordoned context.Context, leave func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case c == always:
		return l.cordoned, func() {}, true
	case l.state == Terminating,
		l.state == Cordoned && (c == fresh || c == stream && follows):
		return nil, nil, false
	}
	// Looking at what exists is let finish and not waited for: callers that look
	// again and again would keep the server from ending.
	owed := c != existing
	l.running++
	if owed {
		l.owed++
	}
	return l.cordoned, func() { l.leave(owed) }, true
}

func (l *Lifecycle) leave(owed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	if owed {
		l.owed--
	}
	if l.owed == 0 && l.idle != nil {
		close(l.idle)
		l.idle = nil
	}
}

// hold counts one more stream or wait; ok is false when there are most already.
// release must be called at its end.
func (l *Lifecycle) hold(most int) (release func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.streams >= most {
		return nil, false
	}
	l.streams++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.streams--
	}, true
}

// Idle is closed when nothing is waited for. While the server is Serving that may
// be past as soon as it is known.
func (l *Lifecycle) Idle() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.owed == 0 {
		done := make(chan struct{})
		close(done)
		return done
	}
	if l.idle == nil {
		l.idle = make(chan struct{})
	}
	return l.idle
}

// Cut ends what still runs: its contexts end with the cause errDraining.
func (l *Lifecycle) Cut() { l.cutNow(errDraining) }

// Terminate admits nothing more.
func (l *Lifecycle) Terminate() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state, l.final = Terminating, true
	l.cordon()
}

// now is the state and what runs.
func (l *Lifecycle) now() lifecycle {
	l.mu.Lock()
	defer l.mu.Unlock()
	return lifecycle{State: l.state, Running: l.running, Streams: l.streams}
}

// bound ends with a request's own context, and when it has outlasted the grace;
// context.Cause tells which.
func (l *Lifecycle) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.cut, func() { cancel(context.Cause(l.cut)) })
	return ctx, func() {
		stop()
		cancel(context.Canceled)
	}
}
