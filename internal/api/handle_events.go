package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"ebb/internal/ops"
)

const (
	// firstWord is how long a stream keeps back that it has begun: so long an error
	// can still be answered as one.
	firstWord = time.Second
	// keepAlive is how often a stream says something: proxies cut what is silent,
	// many of them after 60 s.
	keepAlive = 15 * time.Second

	statusType = "status" // the type of a statusLine

	maxTail = 100_000
)

// eventTypes are those that an ops.Event may have.
var eventTypes = []ops.EventType{ops.StateEvent, ops.ProgressEvent, ops.LogEvent}

// asking is what a caller wants to be told.
type asking struct {
	filter ops.EventFilter
	events bool // any event at all
	status bool // also the operation as it is
}

func (c *call) asking() (asking, error) {
	q := c.query()
	a := asking{filter: ops.EventFilter{
		After: q.text("after"), Follow: q.flag("follow"), Node: q.text("node"), Tail: q.number("tail", 1, maxTail),
	}}
	types := q.list("types")
	for _, name := range types {
		switch {
		case name == statusType:
			a.status = true
		case slices.Contains(eventTypes, ops.EventType(name)):
			a.filter.Types = append(a.filter.Types, ops.EventType(name))
		default:
			q.fault("parameter %q: there is no type %q, only state, progress, log and status", "types", brief(name))
		}
	}
	a.events = len(types) == 0 || len(a.filter.Types) > 0
	if a.filter.Tail > 0 && a.filter.After != "" {
		q.fault(`parameter "tail" does not go with "after"`)
	}
	return a, q.err()
}

// events streams what happens in an operation, one JSON object a line.
func (s *Server) events(c *call) error {
	a, err := c.asking()
	if err != nil {
		return err
	}
	if err := s.subject(c, Viewer); err != nil {
		return err
	}
	ctx := c.ctx()
	if a.filter.Follow {
		if ctx, err = s.hold(c); err != nil {
			return err
		}
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	out := newLines(c, a.filter.After, stop)
	end := out.keepAlive()
	err = s.tell(ctx, c.operation, a, out)
	end()
	switch cause := context.Cause(ctx); {
	case out.broken():
		panic(http.ErrAbortHandler) // half a line may be out
	case err == nil:
		return out.end(lineEnd)
	case c.ctx().Err() == nil && c.cordoned.Err() != nil && a.filter.Follow, errors.Is(cause, errDraining):
		return out.end(lineRetry)
	}
	return err
}

// tell writes everything that was asked for; it returns when all of it is out.
func (s *Server) tell(ctx context.Context, id string, a asking, out *lines) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var watch errgroup.Group
	switch {
	case a.status && a.filter.Follow:
		watch.Go(func() error {
			return s.o.Operations.Watch(ctx, id, func(now ops.Operation) { _ = out.status(now) })
		})
	case a.status:
		op, err := s.o.Operations.Get(ctx, id)
		if err != nil {
			return err
		}
		if err := out.status(op); err != nil {
			return err
		}
	}
	if a.events {
		if err := s.o.Operations.Events(ctx, id, a.filter, out.event); err != nil {
			stop()
			_ = watch.Wait() // it was stopped
			return err
		}
	}
	return watch.Wait()
}

// lines writes the lines of a stream, one at a time and each at once.
type lines struct {
	c    *call
	stop context.CancelCauseFunc // ends the stream when it cannot be written

	mu     sync.Mutex
	last   string // the place of the last event that was written
	failed error
	opened bool
}

func newLines(c *call, after string, stop context.CancelCauseFunc) *lines {
	return &lines{c: c, last: after, stop: stop}
}

func (l *lines) event(e ops.Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.line(e); err != nil {
		return err
	}
	l.last = e.Seq
	return nil
}

func (l *lines) status(op ops.Operation) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.line(statusLine{Type: statusType, Seq: l.last, Operation: op})
}

// end writes the last line of a stream.
func (l *lines) end(how string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.line(endLine{Type: how, After: l.last}); err != nil {
		panic(http.ErrAbortHandler)
	}
	return nil
}

// broken reports whether the stream could not be written.
func (l *lines) broken() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed != nil
}

// keepAlive opens the stream soon, and keeps it from being silent until end is called.
func (l *lines) keepAlive() (end func()) {
	done, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		timer := time.NewTimer(firstWord)
		defer timer.Stop()
		for {
			select {
			case <-done:
				return
			case <-timer.C:
				l.mu.Lock()
				_ = l.write([]byte("\n"))
				l.mu.Unlock()
				timer.Reset(keepAlive)
			}
		}
	}()
	return func() {
		close(done)
		<-over
	}
}

// line writes one line, whole. The caller holds mu.
func (l *lines) line(value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		l.failed = err
		l.stop(err)
		return err
	}
	return l.write(append(data, '\n'))
}

// write writes and flushes within the time that a caller has. After a failure
// nothing more is written, for it would follow half a line.
func (l *lines) write(data []byte) error {
	if l.failed != nil {
		return l.failed
	}
	if !l.opened {
		l.opened = true
		h := l.c.w.Header()
		h.Set("Content-Type", typeEvents)
		h.Set("Cache-Control", "no-store")
		h.Set("X-Accel-Buffering", "no")
		l.c.w.WriteHeader(http.StatusOK)
	}
	l.c.bound()
	_, err := l.c.w.Write(data)
	if err == nil {
		err = http.NewResponseController(l.c.w).Flush()
	}
	if err != nil {
		l.failed = err
		l.stop(err)
	}
	return err
}
