package gateway

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// readResponse reads one answer off a connection; its status is 0 when there is none.
func readResponse(conn net.Conn) response {
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return response{body: []byte(err.Error())}
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return response{body: []byte(err.Error())}
	}
	return response{resp.StatusCode, resp.Header, data, resp.Close}
}

// pausableProxy is a TCP proxy between a gateway and the Temporal server. While it is
// paused, requests reach the server and its responses are held back.
type pausableProxy struct {
	listener net.Listener
	to       string

	mu   sync.Mutex
	hold chan struct{} // closed when answers pass
	all  []net.Conn
}

func newPausableProxy(t *testing.T, to string) *pausableProxy {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &pausableProxy{listener: l, to: to, hold: make(chan struct{})}
	close(r.hold)
	go r.serve()
	t.Cleanup(func() {
		_ = l.Close()
		r.resume()
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, c := range r.all {
			_ = c.Close()
		}
	})
	return r
}

func (r *pausableProxy) address() string { return r.listener.Addr().String() }

func (r *pausableProxy) serve() {
	for {
		from, err := r.listener.Accept()
		if err != nil {
			return // it was closed
		}
		to, err := new(net.Dialer).DialContext(context.Background(), "tcp", r.to)
		if err != nil {
			_ = from.Close()
			continue
		}
		r.mu.Lock()
		r.all = append(r.all, from, to)
		r.mu.Unlock()
		go func() {
			_, _ = io.Copy(to, from)
			_ = to.Close()
		}()
		go func() {
			_, _ = io.Copy(from, &pausableReader{r, to})
			_ = from.Close()
		}()
	}
}

// pause holds what the engine answers from now on.
func (r *pausableProxy) pause() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hold = make(chan struct{})
}

// resume lets everything through.
func (r *pausableProxy) resume() {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.hold:
	default:
		close(r.hold)
	}
}

type pausableReader struct {
	relay *pausableProxy
	conn  net.Conn
}

func (h *pausableReader) Read(p []byte) (int, error) {
	n, err := h.conn.Read(p)
	h.relay.mu.Lock()
	hold := h.relay.hold
	h.relay.mu.Unlock()
	<-hold
	return n, err
}
