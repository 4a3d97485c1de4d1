package api

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/forecast"
	"ebb/internal/ops"
	"ebb/workflows"
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
	c.Client, err = NewClient(ClientOptions{URL: url, Token: token, Trust: &http.Client{Transport: &http.Transport{}}, Notices: func(text string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.notices = append(c.notices, text)
	}})
	require.NoError(t, err)
	t.Cleanup(c.http.CloseIdleConnections)
	c.now = func() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.clock }
	c.pause = func(ctx context.Context, d time.Duration) error {
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

func drains(w http.ResponseWriter, _ *http.Request) { draining().write(w, "r1") }

var (
	badGateway = answers(502, "text/html", "<html>502 Bad Gateway</html>")
	anOp       = answers(200, typeJSON, `{"id":"op-1","kind":"Drain","cluster":"prod","state":"Running","started":"2026-12-01T00:00:00Z"}`)
)

func TestClientAgainstTheServer(t *testing.T) {
	b := newBed(t)
	c := newCaller(t, b.url, b.tokens["otto"])
	ctx := t.Context()
	r := ops.Request{ID: "op-1", Kind: workflows.KindDrain, Cluster: "prod", Nodes: []string{"w1"}}

	op, started, err := c.Start(ctx, r)
	require.NoError(t, err)
	require.True(t, started)
	require.Equal(t, r, op.Request)
	_, started, err = c.Start(ctx, r)
	require.NoError(t, err)
	require.False(t, started)
	other := r
	other.Nodes = []string{"w2"}
	_, _, err = c.Start(ctx, other)
	var conflict *ops.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, &ops.ConflictError{ID: "op-1", Exists: r, Asked: other}, conflict)

	op, err = c.Get(ctx, "op-1")
	require.NoError(t, err)
	require.Equal(t, ops.Running, op.State)
	list, err := c.List(ctx, ops.Filter{Cluster: "prod", Kind: workflows.KindDrain, Open: true, Limit: 7})
	require.NoError(t, err)
	require.Len(t, list, 1)

	said, err := c.Steer(ctx, "op-1", ops.Steering{Action: ops.SkipNode, Node: "w1", Key: "mine"})
	require.NoError(t, err)
	require.Equal(t, "as you say", said)
	_, err = c.Steer(ctx, "op-1", ops.Steering{Action: ops.RetryNow})
	require.NoError(t, err)
	require.Equal(t, ops.Steering{Action: ops.SkipNode, Node: "w1", Key: "mine"}, b.ops.steered[0])
	require.NotEmpty(t, b.ops.steered[1].Key, "so that a repetition is known for one")
	require.NoError(t, c.Cancel(ctx, "op-1"))

	var unknown *ops.UnknownError
	_, err = c.Get(ctx, "nobody")
	require.ErrorAs(t, err, &unknown)
	require.ErrorContains(t, err, `there is no operation "nobody" here`)
	require.ErrorAs(t, c.Watch(ctx, "nobody", func(ops.Operation) {}), &unknown)
	var bad *ops.RequestError
	require.ErrorAs(t, c.Events(ctx, "op-1", ops.EventFilter{After: "x"}, func(ops.Event) error { return nil }), &bad)

	require.ErrorAs(t, c.Events(ctx, "op-1", ops.EventFilter{Tail: -1}, func(ops.Event) error { return nil }), &bad, "as without a gateway")

	overviews, err := c.Clusters().List(ctx)
	require.NoError(t, err)
	require.Equal(t, []forecast.Overview{overview, {Cluster: "dev", Error: "refused"}}, overviews)
	look, err := c.Clusters().Look(ctx, "prod")
	require.NoError(t, err)
	require.Equal(t, overview, look)
	var nowhere *forecast.UnknownClusterError
	_, err = c.Clusters().Look(ctx, "nowhere")
	require.ErrorAs(t, err, &nowhere)
	_, err = newCaller(t, b.url, b.tokens["devop"]).Clusters().Look(ctx, "prod")
	require.ErrorAs(t, err, &nowhere, "it is none of theirs")
	q := forecast.Question{Kind: workflows.KindUpgrade, Cluster: "prod", Target: "1.38.0", Hops: []string{"1.37.9"}}
	_, err = c.Clusters().Plan(ctx, q)
	require.NoError(t, err)
	require.Equal(t, q, b.clusters.asked)

	b.ops.finish()
	_, err = c.Steer(ctx, "op-1", ops.Steering{Action: ops.Pause})
	var notNow *ops.NotNowError
	require.ErrorAs(t, err, &notNow)
	require.EqualError(t, err, "op-1: it is over")
	require.Empty(t, c.notices)

	_, err = newCaller(t, b.url, "wrong").Get(ctx, "op-1")
	require.ErrorContains(t, err, "--token-file")
	require.NotContains(t, err.Error(), "wrong")
}

func TestClientFollows(t *testing.T) {
	b := newBed(t)
	c := newCaller(t, b.url, b.tokens["vera"])
	b.ops.add("op-1", "prod", ops.Running)
	b.ops.say("one", "two")
	var texts []string
	require.NoError(t, c.Events(t.Context(), "op-1", ops.EventFilter{}, func(e ops.Event) error { texts = append(texts, e.Text); return nil }))
	require.Equal(t, []string{"one", "two"}, texts, "those that there are")

	texts = nil
	done := make(chan error, 2)
	go func() {
		done <- c.Events(t.Context(), "op-1", ops.EventFilter{After: "1", Follow: true}, func(e ops.Event) error { texts = append(texts, e.Text); return nil })
	}()
	var states []ops.State
	go func() {
		done <- c.Watch(t.Context(), "op-1", func(op ops.Operation) { states = append(states, op.State) })
	}()
	eventually(t, "both are read", func() bool { return b.server.life.now().Streams == 2 })
	b.ops.say("three")
	b.ops.finish()
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	require.Equal(t, []string{"two", "three"}, texts)
	require.Equal(t, []ops.State{ops.Running, ops.Done}, states, "what has not changed is not told")

	full := fmt.Errorf("no room")
	require.ErrorIs(t, c.Events(t.Context(), "op-1", ops.EventFilter{}, func(ops.Event) error { return full }), full)
}

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
	r := ops.Request{ID: "op-1", Kind: workflows.KindDrain, Cluster: "prod", Nodes: []string{"w1"}}
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
	_, _, err := newCaller(t, url, "").call(t.Context(), request{method: http.MethodPost, path: []string{"operations"}, body: submission{}}, &op)
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
	for name, c := range map[string]struct {
		url         string
		least, most time.Duration
		says        string
	}{
		"a proxy with nobody behind it":      {html, 30 * time.Second, time.Minute, "a proxy answers 502 Bad Gateway"},
		"an address where nobody listens":    {"http://" + refused.Addr().String(), 30 * time.Second, time.Minute, "connection refused"},
		"a server that drains for ever":      {leaving, 9 * time.Minute, 10 * time.Minute, "this server is being replaced"},
		"a server that was there and is not": {known, 9 * time.Minute, 10 * time.Minute, "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			caller := newCaller(t, c.url, "")
			if c.url == known {
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

func TestWhatCannotHelpIsNotRepeated(t *testing.T) {
	for says, handler := range map[string]http.HandlerFunc{
		"it redirects to /login": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/login", http.StatusFound) },
		"is not an Ebb gateway":  answers(404, "text/html", "<html>"),
		"not an Ebb gateway's":   answers(200, "text/html", "<html>"),
		"cannot be read":         answers(200, typeJSON, "{"),
		"too many requests (429": func(w http.ResponseWriter, _ *http.Request) { fail(429, CodeRate, "too many requests").write(w, "r") },
		"you may not (403":       func(w http.ResponseWriter, _ *http.Request) { fail(403, CodeForbidden, "you may not").write(w, "r") },
		"the engine has failed (502": func(w http.ResponseWriter, _ *http.Request) {
			fail(502, CodeEngine, "the engine has failed").write(w, "r")
		},
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

// streams answers with lines and ends the connection; half a line at the end is
// one that a restart has cut.
func streams(lines ...string) http.HandlerFunc {
	return answers(200, typeEvents, strings.Join(lines, "\n"))
}

func event(seq int, text string) string {
	return fmt.Sprintf(`{"seq":"%d","type":"log","time":"2026-12-01T00:00:00Z","text":%q}`, seq, text)
}

func TestFollowedLogIsResumed(t *testing.T) {
	var asked []string
	ask := func(h http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			asked = append(asked, r.URL.Query().Get("after")+"/"+r.URL.Query().Get("tail"))
			h(w, r)
		}
	}
	url, _ := script(t,
		ask(streams("", event(4, "same"), event(5, "same"), `{"type":"retry","after":"5"}`, "")),
		ask(badGateway),
		ask(streams(event(6, "same"), `{"seq":"7","type":"log","text":"ha`)), // cut in the middle of a line
		ask(drains),
		ask(streams(event(7, "half no more"), "", event(8, "last"), `{"type":"end","after":"8"}`, "")))
	c := newCaller(t, url, "")
	var texts []string
	err := c.Events(t.Context(), "op-1", ops.EventFilter{Types: []ops.EventType{ops.LogEvent}, Tail: 2, Follow: true}, func(e ops.Event) error {
		texts = append(texts, e.Seq+" "+e.Text)
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, []string{"4 same", "5 same", "6 same", "7 half no more", "8 last"}, texts)
	require.Equal(t, []string{"/2", "5/", "5/", "6/", "6/"}, asked)
	require.Equal(t, 2, strings.Count(strings.Join(c.notices, "\n"), "log stream interrupted by a server restart, resuming…"))
	require.Equal(t, 2, strings.Count(strings.Join(c.notices, "\n"), "… recovered after"))
}

// A log that was not being followed yet cannot have been interrupted.
func TestLogOfAServerThatDrains(t *testing.T) {
	url, _ := script(t, drains, streams(event(1, "first"), `{"type":"end","after":"1"}`, ""))
	c := newCaller(t, url, "")
	require.NoError(t, c.Events(t.Context(), "op-1", ops.EventFilter{Follow: true}, func(ops.Event) error { return nil }))
	require.Len(t, c.notices, 2)
	require.Equal(t, "API server is restarting, retrying… (Ctrl-C to stop)", c.notices[0])
	require.Contains(t, c.notices[1], "recovered after")
}

// A server that interrupts every stream at once never counts as one that is back.
func TestServerThatAlwaysInterrupts(t *testing.T) {
	status := `{"type":"status","seq":"","operation":{"id":"op-1","kind":"Drain","cluster":"prod","state":"Running","started":"2026-12-01T00:00:00Z"}}`
	for name, handler := range map[string]http.HandlerFunc{
		"with a retry line": streams(`{"type":"retry","after":""}`, ""), "without": streams(""), "with the same status": streams(status, `{"type":"retry","after":""}`, ""),
	} {
		url, requests := script(t, handler)
		c := newCaller(t, url, "")
		changes := 0
		err := c.Watch(t.Context(), "op-1", func(ops.Operation) { changes++ })
		require.ErrorContains(t, err, "gave up after ", name)
		require.LessOrEqual(t, changes, 1)
		require.Less(t, requests.Load(), int32(60), "requests in ten minutes")
		require.LessOrEqual(t, c.clock.Sub(time.Unix(0, 0)), 11*time.Minute)
		require.NotContains(t, strings.Join(c.notices[min(changes*2, len(c.notices)):], "\n"), "recovered")
		for _, w := range c.waits {
			require.GreaterOrEqual(t, w, leastStep)
		}
	}
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
			c, err := NewClient(ClientOptions{URL: "https://ebb.example.com"})
			require.NoError(t, err)
			var o outage
			at := time.Unix(0, 0)
			for range try + 1 {
				wait, ok := o.next(c.patience, at, leaving, time.Second)
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
		_, err := NewClient(ClientOptions{URL: url, Token: "t"})
		require.ErrorContains(t, err, says, url)
		require.NotContains(t, err.Error(), "u:p@")
	}
	for _, url := range []string{"http://127.0.0.1:8470", "http://[::1]:1", "http://localhost", "https://ebb.example.com/prefix"} {
		_, err := NewClient(ClientOptions{URL: url, Token: "t"})
		require.NoError(t, err)
	}
}
