package gateway

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A server that interrupts every stream at once: the command stops at its limit,
// never says that all is well, and never asks in a fast loop.
func TestServerThatAlwaysInterrupts(t *testing.T) {
	s := newEnvironment(t)
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
		c := s.startCLI("vera", server.URL, append(args, "--retry-timeout", limit.String())...)
		require.Equal(t, 1, c.waitForExit(t, time.Minute), "%s", c.errs)
		require.Contains(t, c.errs.String(), "gave up after ")
		require.NotContains(t, c.out.String()+c.errs.String(), "done")
		require.Greater(t, requests.Load(), int32(2), "it has tried")
		require.LessOrEqual(t, requests.Load(), int32(1+limit/(600*time.Millisecond)), "requests within %s", time.Since(began))
	}

	// A real gateway that is cordoned and never ends.
	g := s.newGateway("gateway", "")
	p := s.startLoggingOperation("op-2")
	g.start()
	require.Equal(t, http.StatusOK, g.do("ada", http.MethodPost, "/v1/lifecycle/cordon", "").status)
	c := s.startCLI("vera", g.url(), "logs", p.id, "-f", "--retry-timeout", "4s")
	require.Equal(t, 1, c.waitForExit(t, time.Minute))
	require.Contains(t, c.errs.String(), "this server is being replaced")
	require.Equal(t, http.StatusOK, g.do("ada", http.MethodPost, "/v1/lifecycle/uncordon", "").status)
	p.writeOutput("hello\n")
	p.terminate()
	c = s.startCLI("vera", g.url(), "logs", p.id, "-f")
	require.Zero(t, c.waitForExit(t, time.Minute))
	require.Equal(t, []string{"hello"}, logLines(c.out.String()))
}
