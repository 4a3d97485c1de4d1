package gateway

import (
	"context"
	"net"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/api/client"
	"ebb/internal/ops"
)

// 500 clients lose their server at the same moment. They do not come back at the
// same moment: the arrivals are measured at the successor's address.
func TestHerdDoesNotComeBackInStep(t *testing.T) {
	const clients = 500
	s := newEnvironment(t)
	p := s.startLoggingOperation("op-1")
	g := s.newGateway("gateway", "  rateLimit: {perSecond: 5000, burst: 5000}\n")
	g.start()
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer func() { stop(); all.Wait() }()
	for range clients {
		c, err := client.New(client.Options{URL: g.url(), Token: s.tokens["vera"]})
		require.NoError(t, err)
		all.Go(func() { _ = c.Events(ctx, p.id, ops.EventFilter{Follow: true}, func(ops.Event) error { return nil }) })
	}
	s.eventually("all of them follow", func() bool { _, _, streams := g.lifecycle(); return streams == clients })

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
func (s *environment) arrivals(port, clients int) []time.Time {
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
