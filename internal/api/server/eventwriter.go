package server

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"ebb/internal/api/wire"
	"ebb/internal/ops"
)

// eventWriter writes an event stream. Each line is flushed; several goroutines may
// write.
type eventWriter struct {
	x      *exchange
	cancel context.CancelCauseFunc // called with the error when a write fails

	mu         sync.Mutex
	lastSeq    string // of the last event that was written
	err        error  // of the first write that failed
	headerSent bool
}

// newEventWriter returns a writer for the response of x. after is the Seq where the
// stream begins; cancel is called when the stream cannot be written.
func newEventWriter(x *exchange, after string, cancel context.CancelCauseFunc) *eventWriter {
	return &eventWriter{x: x, lastSeq: after, cancel: cancel}
}

func (w *eventWriter) writeEvent(e ops.Event) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.writeLine(e); err != nil {
		return err
	}
	w.lastSeq = e.Seq
	return nil
}

func (w *eventWriter) writeStatus(op ops.Operation) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.writeLine(wire.StatusLine{Type: wire.LineStatus, Seq: w.lastSeq, Operation: op})
}

// close writes the last line, of type LineEnd or LineRetry.
func (w *eventWriter) close(lineType string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.writeLine(wire.EndLine{Type: lineType, After: w.lastSeq}); err != nil {
		panic(http.ErrAbortHandler)
	}
	return nil
}

// broken reports whether a write has failed.
func (w *eventWriter) broken() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err != nil
}

// keepAlive opens the response after streamOpenDelay and then writes an empty line
// every keepAliveInterval, until stop is called.
func (w *eventWriter) keepAlive() (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		timer := time.NewTimer(streamOpenDelay)
		defer timer.Stop()
		for {
			select {
			case <-done:
				return
			case <-timer.C:
				w.mu.Lock()
				_ = w.write([]byte("\n"))
				w.mu.Unlock()
				timer.Reset(keepAliveInterval)
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

// writeLine writes a value as one line. The caller holds mu.
func (w *eventWriter) writeLine(value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		w.err = err
		w.cancel(err)
		return err
	}
	return w.write(append(data, '\n'))
}

// write writes and flushes data. After an error nothing more is written, because the
// last line may be incomplete. The caller holds mu.
func (w *eventWriter) write(data []byte) error {
	if w.err != nil {
		return w.err
	}
	if !w.headerSent {
		w.headerSent = true
		h := w.x.w.Header()
		h.Set("Content-Type", wire.ContentTypeEvents)
		h.Set("Cache-Control", "no-store")
		h.Set("X-Accel-Buffering", "no")
		w.x.w.WriteHeader(http.StatusOK)
	}
	w.x.extendWriteDeadline()
	_, err := w.x.w.Write(data)
	if err == nil {
		err = http.NewResponseController(w.x.w).Flush()
	}
	if err != nil {
		w.err = err
		w.cancel(err)
	}
	return err
}
