package ops

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"ebb/internal/wait"
)

const (
	// watchInterval is how old what Watch tells may be: heartbeats come once a
	// second and nothing announces them.
	watchInterval = 300 * time.Millisecond
	// awayInterval is the pause between two tries to reach an engine that is away.
	awayInterval = time.Second
)

// Watch implements Client.
func (t *Temporal) Watch(ctx context.Context, id string, changed func(Operation)) error {
	var (
		o     = t.newObserver(id)
		last  Operation
		since time.Time // when the engine went away; zero while it is there
	)
	for {
		op, err := o.look(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case passing(ctx, err):
			if since.IsZero() {
				since = t.now()
				t.notice("the engine does not answer, trying again (Ctrl-C to stop; the operation is not lost)")
			}
		case err != nil:
			return named(id, err)
		default:
			if !since.IsZero() {
				t.notice(fmt.Sprintf("the engine is back after %s", t.now().Sub(since).Round(time.Second)))
				since = time.Time{}
			}
			if !reflect.DeepEqual(op, last) {
				changed(op)
				last = op
			}
			if op.State.Over() {
				return nil
			}
		}
		pause := watchInterval
		if !since.IsZero() {
			pause = awayInterval
		}
		if err := wait.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}
