package sandbox

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
)

// front is a port on which a control plane's own API server answers. All control planes
// share one kube-apiserver, which it passes connections on to.
type front struct {
	port  int
	to    string // host:port
	asked atomic.Int64

	mu       sync.Mutex
	listener net.Listener // nil = connections are refused
	conns    map[net.Conn]bool
}

// openFront returns a front that is open.
func openFront(ctx context.Context, port int, api string) (*front, error) {
	to, err := url.Parse(api)
	if err != nil {
		return nil, err
	}
	f := &front{port: port, to: to.Host}
	return f, f.open(ctx)
}

func (f *front) address() string { return net.JoinHostPort(loopback, strconv.Itoa(f.port)) }

// open takes connections; a front that is open stays so.
func (f *front) open(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.listener != nil {
		return nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", f.address())
	if err != nil {
		return fmt.Errorf("listen for the API server of a control plane: %w", err)
	}
	f.listener, f.conns = l, map[net.Conn]bool{}
	go f.accept(l)
	return nil
}

// close refuses connections and cuts those that are there.
func (f *front) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.listener == nil {
		return
	}
	_ = f.listener.Close() // nobody waits for it
	f.listener = nil
	for conn := range f.conns {
		_ = conn.Close()
	}
}

func (f *front) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return // closed
		}
		f.mu.Lock()
		ours := f.listener == l
		if ours {
			f.conns[conn] = true
		}
		f.mu.Unlock()
		if !ours {
			_ = conn.Close()
			continue
		}
		f.asked.Add(1)
		go f.pass(conn)
	}
}

// pass copies in both directions until one side ends.
func (f *front) pass(conn net.Conn) {
	defer func() {
		_ = conn.Close() // it is over
		f.mu.Lock()
		delete(f.conns, conn)
		f.mu.Unlock()
	}()
	api, err := net.Dial("tcp", f.to) //nolint:noctx // loopback: at once
	if err != nil {
		return
	}
	go func() {
		_, _ = io.Copy(api, conn) // either end ends it
		_ = api.Close()
	}()
	_, _ = io.Copy(conn, api) // either end ends it
	_ = api.Close()
}
