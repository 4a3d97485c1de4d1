// Package wait lets time pass: a pause that a context ends, a condition that is
// asked for again and again, and work that is repeated beside other work. It
// knows nothing of what is waited for.
package wait

import (
	"context"
	"time"
)

// Sleep returns nil after d, or the error of ctx as soon as ctx ends.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// Poll calls condition at once and then every interval, until it is done (nil),
// fails (its error) or ctx ends (the error of ctx). It is for states that nothing
// announces.
func Poll(ctx context.Context, interval time.Duration, condition func() (done bool, err error)) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		if done, err := condition(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// Every calls f every interval in a goroutine of its own, for the first time after
// one interval. The function that it returns ends that and returns when a call
// that is under way has returned; it must be called once, and not by f.
func Every(interval time.Duration, f func()) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				f()
			}
		}
	}()
	return func() { close(done); <-ended }
}
