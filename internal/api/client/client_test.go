package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/api/wire"
	"ebb/internal/operation"
	"ebb/internal/ops"
)

// caller is a client whose waits take no time: they move its clock.
type caller struct {
	*Client
	mu      sync.Mutex
	clock   time.Time
	waits   []time.Duration
	notices []string
	paused  func(n int) // told of every wait
}

func newCaller(t *testing.T, url, token string) *caller {
	t.Helper()
	c := &caller{clock: time.Unix(0, 0)}
	var err error
	c.Client, err = New(Options{URL: url, Token: token, Notify: func(text string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.notices = append(c.notices, text)
	}})
	require.NoError(t, err)
	t.Cleanup(c.http.CloseIdleConnections)
	c.now = func() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.clock }
	c.sleep = func(ctx context.Context, d time.Duration) error {
		c.mu.Lock()
		c.waits, c.clock = append(c.waits, d), c.clock.Add(d)
		n := len(c.waits)
		c.mu.Unlock()
		if c.paused != nil {
			c.paused(n)
		}
		return context.Cause(ctx)
	}
	return c
}

// script answers each request with the next of its handlers, the last for ever.
func script(t *testing.T, handlers ...http.HandlerFunc) (url string, requests *atomic.Int32) {
	t.Helper()
	requests = &atomic.Int32{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := int(requests.Add(1))
		handlers[min(n, len(handlers))-1](w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL, requests
}

func answers(status int, kind, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
}

func cuts(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// refuses answers with a problem.
func refuses(status int, code wire.Code, detail string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", wire.ContentTypeProblem)
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(wire.Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Code: code, Detail: detail, Instance: "r1"})
	}
}

func drains(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Retry-After", "1")
	refuses(http.StatusServiceUnavailable, wire.CodeDraining, "this server is being replaced")(w, r)
}

var (
	badGateway = answers(502, "text/html", "<html>502 Bad Gateway</html>")
	anOp       = answers(200, wire.ContentTypeJSON, `{"id":"op-1","kind":"Drain","cluster":"prod","state":"Running","started":"2026-12-01T00:00:00Z"}`)
)

func TestRestartIsWaitedFor(t *testing.T) {
	url, requests := script(t, drains, badGateway, cuts, anOp)
	c := newCaller(t, url, "")
	_, err := c.Get(t.Context(), "op-1")
	require.NoError(t, err)
	require.EqualValues(t, 4, requests.Load())
	require.GreaterOrEqual(t, len(c.waits), 2, "net/http repeats a read by itself when a connection it had was closed")
	require.GreaterOrEqual(t, c.waits[0], time.Second, "the server has asked for it")
	require.Len(t, c.notices, 2, "each is said once: %v", c.notices)
	require.Equal(t, "API server is restarting, retrying… (Ctrl-C to stop)", c.notices[0])
	require.Regexp(t, `^… recovered after \d+s$`, c.notices[1])
}

func TestStartWhoseAnswerWasLostHasStarted(t *testing.T) {
	r := ops.Request{ID: "op-1", Kind: operation.KindDrain, Cluster: "prod", Nodes: []string{"w1"}}
	url, _ := script(t, cuts, anOp)
	_, started, err := newCaller(t, url, "").Start(t.Context(), r)
	require.NoError(t, err)
	require.True(t, started, "it was us, as far as anybody knows")
	url, _ = script(t, drains, anOp)
	_, started, err = newCaller(t, url, "").Start(t.Context(), r)
	require.NoError(t, err)
	require.False(t, started, "a server that drains has started nothing")
}

func TestWithoutAKeyNothingIsRepeated(t *testing.T) {
	url, requests := script(t, badGateway)
	var op ops.Operation
	_, _, err := newCaller(t, url, "").do(t.Context(), request{method: http.MethodPost, path: []string{"operations"}, body: wire.Submission{}}, &op)
	require.ErrorContains(t, err, "the request may have been done and is not repeated, as it has no Idempotency-Key")
	require.EqualValues(t, 1, requests.Load())
}

func TestClientGivesUp(t *testing.T) {
	refused, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, refused.Close())
	html, _ := script(t, badGateway)
	leaving, _ := script(t, drains)
	known, _ := script(t, anOp, cuts)
	rolled, _ := script(t, anOp, answers(503, "text/html", "<html>503 Service Unavailable</html>"))
	busy, _ := script(t, refuses(429, wire.CodeRate, "vera sends more than 50 requests a second"))
	busyProxy, _ := script(t, answers(429, "text/html", "<html>429 Too Many Requests</html>"))
	for name, c := range map[string]struct {
		url         string
		least, most time.Duration
		says        string
	}{
		"a proxy with nobody behind it":      {html, 30 * time.Second, time.Minute, "a proxy answers 502 Bad Gateway"},
		"an address where nobody listens":    {"http://" + refused.Addr().String(), 30 * time.Second, time.Minute, "connection refused"},
		"a server that drains for ever":      {leaving, 9 * time.Minute, 10 * time.Minute, "this server is being replaced"},
		"a server that was there and is not": {known, 9 * time.Minute, 10 * time.Minute, "EOF"},
		"a proxy whose server was there":     {rolled, 9 * time.Minute, 10 * time.Minute, "a proxy answers 503 Service Unavailable"},
		"a gateway that is asked too often":  {busy, 9 * time.Minute, 10 * time.Minute, "vera sends more than 50 requests a second (429"},
		"a proxy that is asked too often":    {busyProxy, 30 * time.Second, time.Minute, "it answers 429 Too Many Requests"},
	} {
		t.Run(name, func(t *testing.T) {
			caller := newCaller(t, c.url, "")
			if c.url == known || c.url == rolled {
				_, err := caller.Get(t.Context(), "op-1")
				require.NoError(t, err)
			}
			_, err := caller.Get(t.Context(), "op-1")
			require.ErrorContains(t, err, c.says)
			require.ErrorContains(t, err, "gave up after ")
			lasted := caller.clock.Sub(time.Unix(0, 0))
			require.Greater(t, lasted, c.least)
			require.LessOrEqual(t, lasted, c.most)
			require.Len(t, caller.notices, 1)
		})
	}
}

// A token that was replaced while the gateway was away is the one that is sent.
func TestTokenIsReadForEachAttempt(t *testing.T) {
	var sent []string
	listen := func(h http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			sent = append(sent, r.Header.Get("Authorization"))
			h(w, r)
		}
	}
	url, _ := script(t, listen(drains), listen(anOp))
	c := newCaller(t, url, "")
	reads := 0
	c.readToken = func() (string, error) { reads++; return fmt.Sprintf("token-%d", reads), nil }
	_, err := c.Get(t.Context(), "op-1")
	require.NoError(t, err)
	require.Equal(t, []string{"Bearer token-1", "Bearer token-2"}, sent)
	c.readToken = func() (string, error) { return "", errors.New("the file holds no token") }
	_, err = c.Get(t.Context(), "op-1")
	require.ErrorContains(t, err, "the file holds no token")
}

// A rate limit is waited out, for as long as the gateway says.
func TestRateLimitIsWaitedFor(t *testing.T) {
	busy := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "7")
		refuses(http.StatusTooManyRequests, wire.CodeRate, "too many requests")(w, r)
	}
	url, requests := script(t, busy, busy, anOp)
	c := newCaller(t, url, "")
	_, err := c.Get(t.Context(), "op-1")
	require.NoError(t, err)
	require.EqualValues(t, 3, requests.Load())
	require.Len(t, c.waits, 2)
	for _, w := range c.waits {
		require.GreaterOrEqual(t, w, 7*time.Second)
	}
	require.Equal(t, "API server takes no more requests from here for now, retrying… (Ctrl-C to stop)", c.notices[0])

	url, requests = script(t, busy, streams(event(1, "first"), `{"type":"end","after":"1"}`, ""))
	require.NoError(t, newCaller(t, url, "").Events(t.Context(), "op-1", ops.EventFilter{Follow: true}, func(ops.Event) error { return nil }))
	require.EqualValues(t, 2, requests.Load(), "a limit of streams as well")
}

// A name that is gone is that of a gateway which is away, when it has answered there;
// one that never answered was misspelt.
func TestNameThatIsGone(t *testing.T) {
	url, _ := script(t, anOp)
	c := newCaller(t, url, "")
	var gone atomic.Bool
	c.http.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if gone.Load() {
			return nil, &net.OpError{Op: "dial", Net: network, Err: &net.DNSError{Err: "no such host", Name: "ebb.example.com", IsNotFound: true}}
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	_, err := c.Get(t.Context(), "op-1")
	require.NoError(t, err)
	gone.Store(true)
	c.http.CloseIdleConnections()
	c.paused = func(n int) { gone.Store(n < 5) }
	_, err = c.Get(t.Context(), "op-1")
	require.NoError(t, err)
	require.Len(t, c.waits, 5)
}

func TestWhatCannotHelpIsNotRepeated(t *testing.T) {
	for says, handler := range map[string]http.HandlerFunc{
		"it redirects to /login":     func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/login", http.StatusFound) },
		"is not an Ebb gateway":      answers(404, "text/html", "<html>"),
		"not an Ebb gateway's":       answers(200, "text/html", "<html>"),
		"cannot be read":             answers(200, wire.ContentTypeJSON, "{"),
		"you may not (403":           refuses(403, wire.CodeForbidden, "you may not"),
		"the engine has failed (502": refuses(502, wire.CodeEngine, "the engine has failed"),
	} {
		url, requests := script(t, handler)
		_, err := newCaller(t, url, "").Get(t.Context(), "op-1")
		require.ErrorContains(t, err, says)
		require.EqualValues(t, 1, requests.Load(), says)
	}
	secure := httptest.NewUnstartedServer(anOp)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	_, err := newCaller(t, secure.URL, "t").Get(t.Context(), "op-1")
	require.ErrorContains(t, err, "certificate")
	_, err = newCaller(t, "https://no-such-host.invalid", "t").Get(t.Context(), "op-1")
	require.Error(t, err)
}

func TestCtrlCEndsAWait(t *testing.T) {
	url, _ := script(t, badGateway)
	ctx, stop := context.WithCancel(t.Context())
	c := newCaller(t, url, "")
	c.paused = func(n int) {
		if n == 3 {
			stop()
		}
	}
	_, err := c.Get(ctx, "op-1")
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, c.waits, 3)
}

// Clients that lost their server together do not come back together.
func TestHerdIsSpread(t *testing.T) {
	const clients, buckets = 500, 20
	for try := range 6 {
		var arrivals []time.Duration
		for range clients {
			c, err := New(Options{URL: "https://ebb.example.com"})
			require.NoError(t, err)
			var o retryState
			at := time.Unix(0, 0)
			for range try + 1 {
				wait, ok := o.nextBackoff(c.retry, at, time.Second, true)
				require.True(t, ok)
				at = at.Add(wait)
			}
			arrivals = append(arrivals, at.Sub(time.Unix(0, 0)))
		}
		slices.Sort(arrivals)
		first, last := arrivals[0], arrivals[clients-1]
		counts := make([]int, buckets)
		for _, a := range arrivals {
			counts[min(buckets-1, int(float64(a-first)/float64(last-first)*buckets))]++
		}
		require.Greater(t, last-first, 350*time.Millisecond, "try %d", try)
		require.Less(t, slices.Max(counts), clients/4, "try %d: %v", try, counts)
	}
}

func TestClientOptions(t *testing.T) {
	for url, says := range map[string]string{
		"": "want a URL", "ebb.example.com": "want a URL", "ftp://x": "want a URL", "https://u:p@x": "want no more than",
		"http://ebb.example.com": "a token is not sent in the clear",
	} {
		_, err := New(Options{URL: url, Token: "t"})
		require.ErrorContains(t, err, says, url)
		require.NotContains(t, err.Error(), "u:p@")
	}
	for _, url := range []string{"http://127.0.0.1:8470", "http://[::1]:1", "http://localhost", "https://ebb.example.com/prefix"} {
		_, err := New(Options{URL: url, Token: "t"})
		require.NoError(t, err)
	}
}
