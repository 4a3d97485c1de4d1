package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"ebb/internal/api/auth"
	"ebb/internal/api/wire"
	"ebb/internal/ops"
	"ebb/internal/wait"
)

const (
	// streamOpenDelay is how long the status of a stream is held back, so that an error
	// that comes at once is sent as an error response.
	streamOpenDelay = time.Second
	// keepAliveInterval is how often an empty line is sent: many proxies close
	// connections that are silent for 60 s.
	keepAliveInterval = 15 * time.Second

	maxTail = 100_000
)

// eventTypes are the types of an ops.Event.
var eventTypes = []ops.EventType{ops.StateEvent, ops.ProgressEvent, ops.LogEvent}

// eventOptions are the parameters of a request for events.
type eventOptions struct {
	filter ops.EventFilter
	events bool // whether events are asked for
	status bool // whether status lines are asked for
}

// eventOptions parses the parameters of a request for events.
func (x *exchange) eventOptions() (eventOptions, error) {
	q := x.query()
	a := eventOptions{filter: ops.EventFilter{
		After: q.text("after"), Follow: q.flag("follow"), Node: q.text("node"), Tail: q.number("tail", 1, maxTail),
	}}
	types := q.list("types")
	for _, name := range types {
		switch {
		case name == wire.LineStatus:
			a.status = true
		case slices.Contains(eventTypes, ops.EventType(name)):
			a.filter.Types = append(a.filter.Types, ops.EventType(name))
		default:
			q.fault("parameter %q: there is no type %q, only state, progress, log and status", "types", wire.Truncate(name))
		}
	}
	a.events = len(types) == 0 || len(a.filter.Types) > 0
	if a.filter.Tail > 0 && a.filter.After != "" {
		q.fault(`parameter "tail" does not go with "after"`)
	}
	return a, q.err()
}

// streamEvents sends the events of an operation, one JSON object a line.
func (s *Server) streamEvents(x *exchange) error {
	a, err := x.eventOptions()
	if err != nil {
		return err
	}
	if err := s.authorizeOperation(x, auth.Viewer); err != nil {
		return err
	}
	ctx := x.ctx()
	if a.filter.Follow {
		if ctx, err = s.acquireStream(x); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out := newEventWriter(x, a.filter.After, cancel)
	stopKeepAlive := out.keepAlive()
	err = s.writeEvents(ctx, x.operation, a, out)
	stopKeepAlive()
	switch cause := context.Cause(ctx); {
	case out.broken():
		panic(http.ErrAbortHandler) // the last line may be incomplete
	case err == nil:
		return out.close(wire.LineEnd)
	case x.ctx().Err() == nil && x.cordoned.Err() != nil && a.filter.Follow, errors.Is(cause, errGraceEnded):
		return out.close(wire.LineRetry)
	}
	return endOfStream(ctx, err)
}

// writeEvents writes the lines that a asks for, and returns when there are no more.
func (s *Server) writeEvents(ctx context.Context, id string, a eventOptions, out *eventWriter) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var watch errgroup.Group
	switch {
	case a.status && a.filter.Follow:
		watch.Go(func() error {
			return s.watches.Watch(ctx, id, func(now ops.Operation) { _ = out.writeStatus(now) })
		})
	case a.status:
		op, err := s.options.Operations.Get(ctx, id)
		if err != nil {
			return err
		}
		if err := out.writeStatus(op); err != nil {
			return err
		}
	}
	if a.events {
		if err := s.options.Operations.Events(ctx, id, a.filter, out.writeEvent); err != nil {
			stop()
			_ = watch.Wait() // its error is that it was stopped
			return err
		}
	}
	return watch.Wait()
}

// acquireStream counts a stream or wait, up to the limits of Options. The returned
// context ends with that of the request, when the server is cordoned, and, its cause the
// refusal, when the caller's token is taken away.
func (s *Server) acquireStream(x *exchange) (context.Context, error) {
	limits := slotLimits{all: s.options.MaxStreams, ofPrincipal: s.options.MaxStreamsPerPrincipal}
	done, reached := s.lifecycle.streams.acquire(x.principal.String(), limits)
	switch {
	case done == nil && reached == limits.ofPrincipal:
		return nil, s.errorTooManyRequests(fmt.Sprintf("%s has %d streams and waits open, and may have no more", x.principal.Name, reached))
	case done == nil:
		return nil, s.errorTooManyRequests(fmt.Sprintf("this server has %d streams and waits open, and takes no more", reached))
	}
	ctx, cancel := context.WithCancelCause(x.ctx())
	stop := context.AfterFunc(x.cordoned, func() { cancel(context.Canceled) })
	stopChecks := wait.Every(s.recheckInterval, func() {
		if err := s.recheck(x); err != nil {
			cancel(err)
		}
	})
	x.releaseStream = func() {
		stopChecks()
		stop()
		cancel(context.Canceled)
		done()
	}
	return ctx, nil
}

// recheck returns the refusal of an open stream whose token was taken away, has expired
// or does not allow it any more; nil as well when that cannot be found out now.
func (s *Server) recheck(x *exchange) error {
	p, err := authenticate(x.r, s.options.Auth)
	var refused *httpError
	switch {
	case errors.As(err, &refused) && refused.Status == http.StatusUnauthorized:
		return refused
	case err != nil || p.May(x.route.role, x.cluster):
		return nil
	}
	return errorForbidden(p, x.route.role, x.cluster)
}

// endOfStream returns err, or the refusal that has ended the context of a stream.
func endOfStream(ctx context.Context, err error) error {
	var refused *httpError
	if errors.As(context.Cause(ctx), &refused) {
		return refused
	}
	return err
}
