package gateway

import (
	"context"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// blackHole is a TCP proxy that can lose the connections that it has, as a firewall does
// that has forgotten them: nothing passes any more, and neither side is told.
type blackHole struct {
	listener net.Listener
	to       string

	mu    sync.Mutex
	all   []*lossyConn
	dials int
}

// lossyConn takes what it is given, and drops it once it is lost.
type lossyConn struct {
	net.Conn
	lost atomic.Bool
}

func (c *lossyConn) Write(p []byte) (int, error) {
	if c.lost.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func newBlackHole(t *testing.T, to string) *blackHole {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	h := &blackHole{listener: l, to: to}
	go h.serve()
	t.Cleanup(func() {
		_ = l.Close()
		for _, c := range h.conns() {
			_ = c.Close()
		}
	})
	return h
}

func (h *blackHole) url() string { return "https://" + h.listener.Addr().String() }

func (h *blackHole) serve() {
	for {
		from, err := h.listener.Accept()
		if err != nil {
			return // it was closed
		}
		to, err := new(net.Dialer).DialContext(context.Background(), "tcp", h.to)
		if err != nil {
			_ = from.Close()
			continue
		}
		a, b := &lossyConn{Conn: from}, &lossyConn{Conn: to}
		h.mu.Lock()
		h.all, h.dials = append(h.all, a, b), h.dials+1
		h.mu.Unlock()
		go copyUntilEnd(a, b)
		go copyUntilEnd(b, a)
	}
}

// copyUntilEnd copies, and passes the end on unless it is lost as well.
func copyUntilEnd(to, from *lossyConn) {
	_, _ = io.Copy(to, from.Conn)
	if !to.lost.Load() {
		_ = to.Close()
	}
}

func (h *blackHole) conns() []*lossyConn {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.all)
}

// loseConnections loses those that there are. New ones are good.
func (h *blackHole) loseConnections() {
	for _, c := range h.conns() {
		c.lost.Store(true)
	}
}

func (h *blackHole) dialed() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.dials
}

// A connection that has died in silence is left for a new one, instead of taking every
// retry as well.
func TestConnectionThatDiedInSilenceIsLeft(t *testing.T) {
	s := newEnvironment(t)
	p := s.startLoggingOperation("op-1")
	g, caFile := s.newSecureGateway("gateway", "")
	g.start()
	between := newBlackHole(t, g.address())
	c := s.startCLI("vera", between.url(), "logs", p.id, "-f", "--ca-file", caFile)
	p.writeOutput("before\n")
	s.eventually("it follows", func() bool { return slices.Equal(p.printed, logLines(c.out.String())) })
	require.Equal(t, 1, between.dialed())

	between.loseConnections()
	p.writeOutput("after\n")
	s.eventually("it goes on", func() bool { return slices.Equal(p.printed, logLines(c.out.String())) })
	require.Equal(t, 2, between.dialed())
	require.Contains(t, c.errs.String(), "log stream interrupted by a server restart, resuming…")
	p.terminate()
	require.Zero(t, c.waitForExit(t, time.Minute), "%s", c.errs)
}
