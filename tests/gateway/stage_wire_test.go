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

// readAnswer reads one answer off a connection; its status is 0 when there is none.
func readAnswer(conn net.Conn) answer {
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return answer{body: []byte(err.Error())}
	}
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return answer{body: []byte(err.Error())}
	}
	return answer{response.StatusCode, response.Header, data, response.Close}
}

// relay stands between a gateway and the engine. Held, it keeps back what the
// engine answers: what was asked for is done, and nobody is told.
type relay struct {
	listener net.Listener
	to       string

	mu   sync.Mutex
	hold chan struct{} // closed when answers pass
	all  []net.Conn
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &relay{listener: l, to: to, hold: make(chan struct{})}
	close(r.hold)
	go r.serve()
	t.Cleanup(func() {
		_ = l.Close()
		r.pass()
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, c := range r.all {
			_ = c.Close()
		}
	})
	return r
}

func (r *relay) address() string { return r.listener.Addr().String() }

func (r *relay) serve() {
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
			_, _ = io.Copy(from, &heldReader{r, to})
			_ = from.Close()
		}()
	}
}

// keepBack holds what the engine answers from now on.
func (r *relay) keepBack() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hold = make(chan struct{})
}

// pass lets everything through.
func (r *relay) pass() {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.hold:
	default:
		close(r.hold)
	}
}

type heldReader struct {
	relay *relay
	conn  net.Conn
}

func (h *heldReader) Read(p []byte) (int, error) {
	n, err := h.conn.Read(p)
	h.relay.mu.Lock()
	hold := h.relay.hold
	h.relay.mu.Unlock()
	<-hold
	return n, err
}
