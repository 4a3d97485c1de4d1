package gateway

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"ebb/internal/api/client"
	"ebb/internal/ops"
)

// 500 clients use one token at the same moment. None of them fails, whether the limit is
// that of requests or that of streams.
func TestManyClientsOfOneToken(t *testing.T) {
	const clients = 500
	s := newEnvironment(t)
	p := s.startLoggingOperation("op-1")
	p.writeOutput("hello\n")
	p.terminate()
	g := s.newGateway("gateway", "  maxStreamsPerPrincipal: 20\n")
	g.start()
	var all sync.WaitGroup
	failed := make(chan error, 2*clients)
	for range clients {
		c, err := client.New(client.Options{URL: g.url(), Token: s.tokens["vera"]})
		require.NoError(t, err)
		all.Go(func() {
			_, err := c.Get(t.Context(), p.id)
			failed <- err
			failed <- c.Events(t.Context(), p.id, ops.EventFilter{Follow: true}, func(ops.Event) error { return nil })
		})
	}
	all.Wait()
	close(failed)
	for err := range failed {
		require.NoError(t, err)
	}
	metrics := string(g.do("ada", "GET", "/metrics", "").body)
	require.NotContains(t, metrics, "ebb_gateway_rate_limited_total 0\n", "the limits were reached")
}
