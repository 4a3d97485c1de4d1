package gateway

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/api"
	"ebb/internal/ops"
)

// A server that interrupts every stream at once: the command stops at its limit,
// never says that all is well, and never asks in a fast loop.
func TestServerThatAlwaysInterrupts(t *testing.T) {
	s := newStage(t)
	const running = `{"id":"op-1","kind":"Drain","cluster":"prod","nodes":["w1"],"state":"Running","started":"2026-12-01T00:00:00Z"}`
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.Header().Set("Content-Type", "application/x-ndjson")
		_, _ = fmt.Fprintf(w, "{\"type\":\"status\",\"seq\":\"1\",\"operation\":%s}\n{\"type\":\"retry\",\"after\":\"1\"}\n", running)
	}))
	t.Cleanup(server.Close)
	const limit = 8 * time.Second
	for _, args := range [][]string{{"watch", "op-1"}, {"logs", "op-1", "-f"}} {
		requests.Store(0)
		began := time.Now()
		c := s.ebb("vera", server.URL, append(args, "--retry-timeout", limit.String())...)
		require.Equal(t, 1, c.ends(t, time.Minute), "%s", c.errs)
		require.Contains(t, c.errs.String(), "gave up after ")
		require.NotContains(t, c.out.String()+c.errs.String(), "done")
		require.Greater(t, requests.Load(), int32(2), "it has tried")
		require.LessOrEqual(t, requests.Load(), int32(1+limit/(600*time.Millisecond)), "requests within %s", time.Since(began))
	}

	// A real gateway that is cordoned and never ends.
	g := s.newGateway("gateway", "")
	p := s.printer("op-2")
	g.start()
	require.Equal(t, http.StatusOK, g.do("ada", http.MethodPost, "/v1/lifecycle/cordon", "").status)
	c := s.ebb("vera", g.url(), "logs", p.id, "-f", "--retry-timeout", "4s")
	require.Equal(t, 1, c.ends(t, time.Minute))
	require.Contains(t, c.errs.String(), "this server is being replaced")
	require.Equal(t, http.StatusOK, g.do("ada", http.MethodPost, "/v1/lifecycle/uncordon", "").status)
	p.prints("hello\n")
	p.end()
	c = s.ebb("vera", g.url(), "logs", p.id, "-f")
	require.Zero(t, c.ends(t, time.Minute))
	require.Equal(t, []string{"hello"}, linesOf(c.out.String()))
}

// 500 clients lose their server at the same moment. They do not come back at the
// same moment: the arrivals are measured at the successor's address.
func TestHerdDoesNotComeBackInStep(t *testing.T) {
	const clients = 500
	s := newStage(t)
	p := s.printer("op-1")
	g := s.newGateway("gateway", "  rateLimit: {perSecond: 5000, burst: 5000}\n")
	g.start()
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer func() { stop(); all.Wait() }()
	for range clients {
		c, err := api.NewClient(api.ClientOptions{URL: g.url(), Token: s.tokens["vera"], Trust: &http.Client{Transport: &http.Transport{}}})
		require.NoError(t, err)
		all.Go(func() { _ = c.Events(ctx, p.id, ops.EventFilter{Follow: true}, func(ops.Event) error { return nil }) })
	}
	s.eventually("all of them follow", func() bool { _, _, streams := g.running(); return streams == clients })

	g.signal(syscall.SIGTERM)
	<-g.process.Done()
	arrivals := s.arrivals(g.port, clients)

	slices.SortFunc(arrivals, time.Time.Compare)
	first, spread := arrivals[0], arrivals[clients-1].Sub(arrivals[0])
	const slice = 50 * time.Millisecond
	counts := map[int]int{}
	most := 0
	for _, a := range arrivals {
		n := int(a.Sub(first) / slice)
		counts[n]++
		most = max(most, counts[n])
	}
	t.Logf("%d clients came back over %s, at most %d of them within %s", clients, spread.Round(time.Millisecond), most, slice)
	require.Greater(t, spread, 400*time.Millisecond)
	require.Less(t, most, clients/4)
}

// arrivals listens at a port and writes down when each of so many clients came.
// Nobody is let in, so that each comes with a connection of its own.
func (s *stage) arrivals(port, clients int) []time.Time {
	s.t.Helper()
	var l net.Listener
	s.eventually("the port is free", func() bool {
		var err error
		l, err = new(net.ListenConfig).Listen(s.t.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		return err == nil
	})
	defer func() { _ = l.Close() }()
	var times []time.Time
	for len(times) < clients {
		conn, err := l.Accept()
		require.NoError(s.t, err)
		times = append(times, time.Now())
		s.t.Cleanup(func() { _ = conn.Close() }) // a client that is kept waiting does not come twice
	}
	return times
}

