package session

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// lastWrites is how long the rest may take to be written when the other side has closed the connection.
	lastWrites = time.Minute

	// quiet is how long a connection that is closed in one direction may be silent in the
	// other, when the other end of the tunnel cannot be told that one direction is closed.
	quiet = 10 * time.Second
)

type halfCloser interface{ CloseWrite() error }

// Join carries bytes between a connection of a session and another one until both
// directions have ended, and closes both.
func Join(c *Conn, remote net.Conn) {
	ended := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		select {
		case <-c.peerGone:
			_ = remote.SetDeadline(time.Now().Add(lastWrites))
		case <-ended:
		}
	})
	var directions sync.WaitGroup
	directions.Go(func() { carry(remote, c) })
	directions.Go(func() { carry(c, remote) })
	directions.Wait()
	close(ended)
	all.Wait()
	_ = c.Close()
	_ = remote.Close()
}

// carry copies one direction to its end and lets the other side know.
func carry(to, from net.Conn) {
	_, err := io.CopyBuffer(onlyWriter{to}, onlyReader{from}, make([]byte, chunk))
	half, ok := to.(halfCloser)
	if err == nil && ok {
		if err = half.CloseWrite(); err == nil {
			return // the other direction goes on
		}
	}
	if c, ok := to.(*Conn); ok && errors.Is(err, ErrNoHalfClose) && c.session.opts.Dial == nil {
		c.awaitQuiet(quiet) // the answer to what was sent may be under way
	}
	_ = to.Close()
	_ = from.Close()
}

// awaitQuiet returns when the other end has sent nothing for a while, or has closed the connection.
func (c *Conn) awaitQuiet(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-c.peerGone:
			return
		case <-c.session.ended:
			return
		case <-timer.C:
		}
		c.mu.Lock()
		left := d - time.Since(c.lastReceived)
		c.mu.Unlock()
		if left <= 0 {
			return
		}
		timer.Reset(left)
	}
}

// onlyReader and onlyWriter hide ReadFrom and WriteTo, which would take larger steps than packets have.
type onlyReader struct{ io.Reader }

type onlyWriter struct{ io.Writer }
