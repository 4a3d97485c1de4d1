package gateway

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/api/client"
	"ebb/internal/api/wire"
)

// tryNextReplica has nginx ask the other replica when one is gone or sends away. The
// callers of this test all send an Idempotency-Key, so that a POST may be repeated.
const tryNextReplica = `
      proxy_connect_timeout 2s;
      proxy_next_upstream error timeout http_502 http_503 http_504 non_idempotent;
      proxy_next_upstream_tries 3;`

const (
	loadDuration    = 30 * time.Second
	requestInterval = time.Second / 50 // between two requests
)

// Two replicas behind nginx are rolled one after the other under 50 requests a
// second. No caller retries, and none sees anything of it.
func TestRollingReplicasFailsNoCall(t *testing.T) {
	s := newEnvironment(t)
	one, two := s.newGateway("one", ""), s.newGateway("two", "")
	one.start()
	two.start()
	p := s.newNginx()
	p.configure(reverseProxyConfig(tryNextReplica, one.address(), two.address()))
	p.start()
	s.startOperation()
	// There is no worker here: what it would do is not the point, and one operation
	// that is over is looked at without asking it.
	require.NoError(t, s.client.TerminateWorkflow(t.Context(), "op-1", "", "for the test"))

	load := newLoad(s, p.url())
	user := startPollingClient(t, s, p.url())
	done := make(chan struct{})
	go func() {
		defer close(done)
		load.run(time.Now())
	}()
	for _, g := range []*gateway{one, two} {
		load.waitForResponses(t, 200)
		old := g.process
		g.signal(syscall.SIGTERM)
		require.Zero(t, old.ExitCode())
		load.waitForResponses(t, 50) // by the other one alone
		g.start()
	}
	<-done
	load.wait()
	require.Empty(t, load.failed(), "of %d calls", load.total())
	require.EqualValues(t, loadDuration/requestInterval, load.total())
	require.Empty(t, user.end(t), "a user was told")
	for _, id := range load.ids {
		require.EqualValues(t, 1, s.executionCount(id), id)
	}
	require.Positive(t, p.responseCount(http.StatusAccepted))
	require.Zero(t, p.responseCount(http.StatusServiceUnavailable)+p.responseCount(http.StatusBadGateway))
}

// requestLoad sends requests at a constant rate, each once and without retries.
type requestLoad struct {
	s      *environment
	url    string
	client *http.Client
	ids    []string // of the operations that it has started

	group     sync.WaitGroup
	mu        sync.Mutex
	succeeded int
	failures  []string
}

func newLoad(s *environment, url string) *requestLoad {
	return &requestLoad{s: s, url: url, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: 30 * time.Second}}
}

// run sends each request when it is due, whatever became of those before; what a
// busy machine makes late is sent all the same.
func (l *requestLoad) run(began time.Time) {
	for i := range int(loadDuration / requestInterval) {
		due := time.NewTimer(time.Until(began.Add(time.Duration(i) * requestInterval)))
		<-due.C
		who, method, path, body, key := "vera", http.MethodGet, "/v1/operations/op-1", "", ""
		switch i % 10 {
		case 0:
			key = fmt.Sprintf("rolled-%d", i)
			who, method, path, body = "otto", http.MethodPost, "/v1/operations", drainRequest("prod", "w1")
			l.ids = append(l.ids, key)
		case 1:
			path = "/v1/operations?open=true&limit=5"
		case 2, 3, 4, 5, 6:
			path = "/v1/lifecycle"
		case 7:
			path = "/v1/operations/op-1/events?tail=3"
		}
		l.group.Go(func() { l.call(who, method, path, body, key) })
	}
}

func (l *requestLoad) call(who, method, path, body, key string) {
	header := l.s.header(who)
	if key != "" {
		header.Set(wire.HeaderIdempotencyKey, key)
	}
	a, err := send(l.s.t.Context(), l.client, method, l.url+path, body, header)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil:
		l.failures = append(l.failures, fmt.Sprintf("%s %s: %v", method, path, err))
	case a.status >= 300:
		l.failures = append(l.failures, fmt.Sprintf("%s %s: %d %s", method, path, a.status, a.body))
	default:
		l.succeeded++
	}
}

// waitForResponses waits for that many more good answers.
func (l *requestLoad) waitForResponses(t *testing.T, more int) {
	t.Helper()
	was := l.total()
	l.s.eventually("answers come", func() bool { return l.total() >= was+more })
}

func (l *requestLoad) wait() { l.group.Wait() }

func (l *requestLoad) total() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.succeeded + len(l.failures)
}

func (l *requestLoad) failed() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.failures)
}

// pollingClient gets an operation repeatedly with Ebb's own client.
type pollingClient struct {
	stop    context.CancelFunc
	done    chan error
	mu      sync.Mutex
	notices []string
}

func startPollingClient(t *testing.T, s *environment, url string) *pollingClient {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	u := &pollingClient{stop: cancel, done: make(chan error, 1)}
	c, err := client.New(client.Options{URL: url, Token: s.tokens["vera"], Notify: func(text string) {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.notices = append(u.notices, text)
	}})
	require.NoError(t, err)
	go func() {
		again := time.NewTicker(requestInterval * 5)
		defer again.Stop()
		for ; ctx.Err() == nil; <-again.C {
			if _, err := c.Get(ctx, "op-1"); err != nil && ctx.Err() == nil {
				u.done <- err
				return
			}
		}
		u.done <- nil
	}()
	return u
}

// end returns what the user was told.
func (u *pollingClient) end(t *testing.T) []string {
	t.Helper()
	u.stop()
	require.NoError(t, <-u.done)
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.notices
}
