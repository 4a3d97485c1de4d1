package session

import (
	"sync"
	"time"
)

// signal wakes one waiter; set while nobody waits, it wakes the next.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

func (s signal) set() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// within reports whether the signal is set before d is over.
func (s signal) within(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-s:
		return true
	case <-timer.C:
		return false
	}
}

// deadline is a moment that may be moved, also while somebody waits for it. The zero
// deadline never passes.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	over  chan struct{} // closed when the moment has passed; nil until somebody asks
}

// passed returns a channel that is closed when the moment has passed.
func (d *deadline) passed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.channel()
}

// isOver reports whether the moment has passed.
func (d *deadline) isOver() bool {
	select {
	case <-d.passed():
		return true
	default:
		return false
	}
}

func (d *deadline) channel() chan struct{} {
	if d.over == nil {
		d.over = make(chan struct{})
	}
	return d.over
}

// set moves the moment; a zero time is never.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.over // it is being closed in this moment
	}
	d.timer = nil
	select {
	case <-d.channel():
		d.over = nil
	default:
	}
	if t.IsZero() {
		return
	}
	over := d.channel()
	left := time.Until(t)
	if left <= 0 {
		close(over)
		return
	}
	d.timer = time.AfterFunc(left, func() { close(over) })
}
