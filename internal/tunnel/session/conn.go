package session

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// chunk is the most data of a packet, in bytes.
	chunk = 32 << 10

	// window is how many bytes of a connection may wait for their reader, in each direction.
	window = 1 << 20

	// unpacedWindow is the same for a peer without flow control: what it sends beyond it holds
	// up all its connections, for at most slowReader; then the connection is cut.
	unpacedWindow = 16 << 20
	slowReader    = 5 * time.Second
)

// ErrNoHalfClose is returned by CloseWrite when the other end knows no half-closed connections.
var ErrNoHalfClose = errors.New("the other end of the tunnel knows no half-closed connections")

// Conn is a connection of a session. It is a net.Conn with CloseWrite.
type Conn struct {
	session *Session
	id      int64

	readable, writable, drained signal
	readLimit, writeLimit       deadline
	peerGone                    chan struct{} // closed when the other end has closed both directions

	mu           sync.Mutex
	received     [][]byte // not read yet
	size         int      // bytes in received
	lastReceived time.Time
	read         int   // bytes that the peer has not been told of
	credit       int   // bytes that may be written; counted with flow control only
	readErr      error // after what was received
	writeErr     error
	closed       bool // by this end
	peerClosed   bool
}

func newConn(s *Session, id int64) *Conn {
	return &Conn{
		session: s, id: id, credit: window, lastReceived: time.Now(),
		readable: newSignal(), writable: newSignal(), drained: newSignal(), peerGone: make(chan struct{}),
	}
}

// Read returns what the other end has sent, and io.EOF after its last byte.
func (c *Conn) Read(p []byte) (int, error) {
	for {
		if c.readLimit.isOver() {
			return 0, os.ErrDeadlineExceeded
		}
		n, grant, err := c.take(p)
		if grant > 0 {
			_ = c.session.out.control(windowPacket(c.id, grant))
		}
		if n > 0 || err != nil || len(p) == 0 {
			c.moved(n)
			return n, err
		}
		select {
		case <-c.readable:
		case <-c.readLimit.passed():
			return 0, os.ErrDeadlineExceeded
		}
	}
}

// take copies what has been received, and returns how much more the peer may be told to send.
func (c *Conn) take(p []byte) (n, grant int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, 0, net.ErrClosed
	}
	for n < len(p) && len(c.received) > 0 {
		copied := copy(p[n:], c.received[0])
		n += copied
		if c.received[0] = c.received[0][copied:]; len(c.received[0]) == 0 {
			c.received = c.received[1:]
		}
	}
	c.size -= n
	c.read += n
	if n > 0 {
		c.drained.set()
	}
	if len(c.received) > 0 || c.readErr != nil {
		c.readable.set() // for another reader
	}
	if c.session.opts.FlowControl && c.read >= window/2 && !c.peerClosed {
		grant, c.read = c.read, 0
	}
	if n == 0 {
		err = c.readErr
	}
	return n, grant, err
}

// Write sends p, and returns when all of it is on its way.
func (c *Conn) Write(p []byte) (written int, err error) {
	for len(p) > 0 {
		if c.writeLimit.isOver() {
			return written, os.ErrDeadlineExceeded
		}
		n, err := c.reserve(min(len(p), chunk))
		if err != nil {
			return written, err
		}
		if err := c.session.out.data(c.writeLimit.passed(), c.session.ended, dataPacket(c.id, append([]byte(nil), p[:n]...))); err != nil {
			return written, err
		}
		c.moved(n)
		written, p = written+n, p[n:]
	}
	return written, nil
}

// reserve waits until at least one of n bytes may be written, and returns how many.
func (c *Conn) reserve(n int) (int, error) {
	for {
		c.mu.Lock()
		may, err := n, c.writeErr
		if c.session.opts.FlowControl {
			may = min(n, c.credit)
			c.credit -= may
		}
		if c.credit > 0 || err != nil {
			c.writable.set() // for another writer
		}
		c.mu.Unlock()
		if err != nil || may > 0 {
			return may, err
		}
		select {
		case <-c.writable:
		case <-c.writeLimit.passed():
			return 0, os.ErrDeadlineExceeded
		}
	}
}

func (c *Conn) moved(n int) {
	if n > 0 && c.session.opts.Moved != nil {
		c.session.opts.Moved(n)
	}
}

// deliver takes data from the other end.
func (c *Conn) deliver(data []byte) error {
	for limit := c.limit(); ; {
		c.mu.Lock()
		if c.closed || c.readErr != nil {
			c.mu.Unlock()
			return nil // nobody reads it
		}
		if c.size == 0 || c.size+len(data) <= limit {
			c.received, c.size, c.lastReceived = append(c.received, data), c.size+len(data), time.Now()
			c.readable.set()
			c.mu.Unlock()
			return nil
		}
		c.mu.Unlock()
		if c.session.opts.FlowControl {
			return c.cut(fmt.Errorf("the peer has sent more than the window of %d bytes", window))
		}
		if !c.drained.within(slowReader) {
			return c.cut(fmt.Errorf("its reader has left %d bytes for %s", unpacedWindow, slowReader))
		}
	}
}

func (c *Conn) limit() int {
	if c.session.opts.FlowControl {
		return window
	}
	return unpacedWindow
}

// cut ends the connection because of an error.
func (c *Conn) cut(why error) error {
	why = fmt.Errorf("the connection %d is cut: %w", c.id, why)
	c.fail(why)
	_ = c.Close()
	return why
}

// grant lets n more bytes be written.
func (c *Conn) grant(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.credit = min(c.credit+n, window)
	c.writable.set()
}

// readEnds lets readers have why after all that was received.
func (c *Conn) readEnds(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.readErr == nil {
		c.readErr = why
	}
	c.readable.set()
}

// writeEnds lets writers have why.
func (c *Conn) writeEnds(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writeErr == nil {
		c.writeErr = why
	}
	c.writable.set()
}

// fail ends both directions.
func (c *Conn) fail(why error) {
	c.readEnds(why)
	c.writeEnds(why)
	c.drained.set()
}

// closedByPeer hears that the other end has closed the connection.
func (c *Conn) closedByPeer(why error) {
	c.mu.Lock()
	if !c.peerClosed {
		c.peerClosed = true
		close(c.peerGone)
	}
	c.mu.Unlock()
	c.readEnds(why)
	c.writeEnds(fmt.Errorf("the other end has closed the connection: %w", syscall.EPIPE))
}

// CloseWrite tells the other end that nothing more is written; reading goes on. It returns
// ErrNoHalfClose when the other end cannot be told.
func (c *Conn) CloseWrite() error {
	if !c.session.opts.FlowControl {
		return ErrNoHalfClose
	}
	c.mu.Lock()
	ended := c.writeErr != nil
	c.mu.Unlock()
	if ended {
		return nil
	}
	c.writeEnds(fmt.Errorf("the connection is closed for writing: %w", net.ErrClosed))
	return c.session.out.control(eofPacket(c.id))
}

// Close closes both directions; what was written before is still delivered.
func (c *Conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed, c.received, c.size = true, nil, 0
	peerClosed, why := c.peerClosed, c.readErr
	c.mu.Unlock()
	c.fail(net.ErrClosed)
	if peerClosed && c.session.opts.Dial == nil {
		return nil // both know
	}
	problem := ""
	if why != nil && !errors.Is(why, io.EOF) {
		problem = why.Error()
	}
	if c.session.opts.Dial != nil {
		c.session.forget(c.id) // the number is not used again
	}
	return c.session.out.control(c.session.closing(c.id, problem))
}

// LocalAddr returns a placeholder: the end is in another process.
func (c *Conn) LocalAddr() net.Addr { return address{} }

// RemoteAddr returns a placeholder: the end is in another process.
func (c *Conn) RemoteAddr() net.Addr { return address{} }

type address struct{}

func (address) Network() string { return "tunnel" }
func (address) String() string  { return "tunnel" }

// SetDeadline sets when reads and writes fail; zero = never.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline sets when reads fail; zero = never.
func (c *Conn) SetReadDeadline(t time.Time) error { c.readLimit.set(t); return nil }

// SetWriteDeadline sets when writes fail; zero = never.
func (c *Conn) SetWriteDeadline(t time.Time) error { c.writeLimit.set(t); return nil }
