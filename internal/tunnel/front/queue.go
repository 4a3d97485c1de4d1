package front

import (
	"net"
	"sync"
)

// queue is a listener that accepts what is put into it.
type queue struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newQueue() *queue { return &queue{conns: make(chan net.Conn), closed: make(chan struct{})} }

// put hands a connection over, and closes it when nobody accepts any more.
func (q *queue) put(c net.Conn) {
	select {
	case q.conns <- c:
	case <-q.closed:
		_ = c.Close()
	}
}

// Accept implements net.Listener.
func (q *queue) Accept() (net.Conn, error) {
	select {
	case c := <-q.conns:
		return c, nil
	case <-q.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (q *queue) Close() error {
	q.once.Do(func() { close(q.closed) })
	return nil
}

// Addr implements net.Listener.
func (*queue) Addr() net.Addr { return &net.UnixAddr{Name: "tunnel", Net: "unix"} }
