package main

import (
	"context"
	"encoding/json"
	"io"

	"ebb/internal/ops"
)

// display shows an operation that changes.
type display interface {
	show(op ops.Operation) // as it is now
	notice(text string)    // something in between that a person should know
	close() error          // no more will come; the first error of writing
}

// follow shows an operation until it is over. The error says how it ended, when
// that is not well, or that the user has stopped it.
func (a *app) follow(ctx context.Context, operations ops.Client, id string) error {
	d := a.display()
	a.listener = d.notice
	var last ops.Operation
	err := operations.Watch(ctx, id, func(op ops.Operation) {
		last = op
		d.show(op)
	})
	a.listener = nil
	if closeErr := d.close(); err == nil {
		err = closeErr
	}
	switch {
	case ctx.Err() != nil && !last.State.Over():
		return &stoppedError{id: id}
	case err != nil:
		return err
	case outcomeCode(last) != exitDone:
		return &outcomeError{op: last}
	}
	return nil
}

// display is the one that fits where the output goes.
func (a *app) display() display {
	if a.json() {
		return &stream{encoder: json.NewEncoder(a.out), errs: a.errs}
	}
	if _, _, ok := terminal(a.out); ok {
		return newScreen(a.out, a.errs)
	}
	return &journal{out: a.out, errs: a.errs}
}

// stream writes one JSON object for each change.
type stream struct {
	encoder *json.Encoder
	errs    io.Writer
	err     error
}

func (s *stream) show(op ops.Operation) {
	if s.err == nil {
		s.err = s.encoder.Encode(op)
	}
}

func (s *stream) notice(text string) { say(s.errs, text) }
func (s *stream) close() error       { return s.err }
