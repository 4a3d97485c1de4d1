package activities

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"ebb/internal/operation"
	"ebb/internal/tail"
	"ebb/internal/wait"
)

const (
	// outputEvery is how old a line may be before it is sent.
	outputEvery = time.Second
	// outputPiece is when a piece is sent at once, in bytes. Temporal warns of
	// payloads of 512 KiB.
	outputPiece = 64 << 10
	// outputMost is how much of one run is sent, in bytes; a history may have 50 MiB.
	outputMost = 4 << 20
)

// recorder sends what a script prints to the operation's log, and knows how much
// of it has arrived there.
type recorder struct {
	send func(context.Context, operation.Output) error
	run  operation.Output // names the run
	rest string           // where the rest is, when it is more than the log takes

	mu      sync.Mutex
	arrived operation.ScriptProgress // what the heartbeat says
	pending []byte
	sending sync.Mutex // one piece at a time, in order
}

// progress is what has arrived in the log.
func (r *recorder) progress() operation.ScriptProgress {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.arrived
}

// begin forgets what has not arrived: it is read again, from progress().Offset.
func (r *recorder) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending = nil
}

// write takes a chunk; when much has come together it is sent at once.
func (r *recorder) write(ctx context.Context, chunk []byte) error {
	r.mu.Lock()
	r.pending = append(r.pending, chunk...)
	much := len(r.pending) >= outputPiece
	r.mu.Unlock()
	if much {
		return r.flush(ctx, false)
	}
	return nil
}

// keepSending sends whole lines every second until the returned function is called.
func (r *recorder) keepSending(ctx context.Context) (stop func()) {
	return wait.Every(outputEvery, func() {
		_ = r.flush(ctx, false) // is tried again, and at the end must not fail
	})
}

// flush sends what is pending: whole lines, or with all set also a line that has
// not ended. What does not arrive stays pending.
func (r *recorder) flush(ctx context.Context, all bool) error {
	r.sending.Lock()
	defer r.sending.Unlock()
	for {
		piece, at := r.next(all)
		if len(piece) == 0 {
			return nil
		}
		if at <= outputMost {
			o := r.run
			o.Offset, o.Size, o.Text = at, int64(len(piece)), strings.ToValidUTF8(string(piece), "�")
			if at+o.Size > outputMost {
				o.Text += fmt.Sprintf("\n[the log takes %d MiB of a script; all of its output is in %s on the node]\n", outputMost>>20, r.rest)
			}
			if err := r.send(ctx, o); err != nil {
				return fmt.Errorf("write the output of the script to the operation's log: %w", err)
			}
		}
		r.sent(piece)
	}
}

// next is the piece to send, and its offset.
func (r *recorder) next(all bool) ([]byte, int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	piece := r.pending[:min(len(r.pending), outputPiece)]
	if end := bytes.LastIndexByte(piece, '\n') + 1; end > 0 {
		piece = piece[:end]
	} else if !all && len(piece) < outputPiece {
		piece = nil
	}
	return bytes.Clone(piece), r.arrived.Offset
}

func (r *recorder) sent(piece []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending = r.pending[len(piece):]
	r.arrived.Offset += int64(len(piece))
	r.arrived.Output = tail.Of(r.arrived.Output+string(piece), outputTail)
}
