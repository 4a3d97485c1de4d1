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

	"ebb/internal/api"
)

// nextReplica has nginx ask the other replica when one is gone or sends away. The
// callers of this test all send an Idempotency-Key, so that a POST may be repeated.
const nextReplica = `
      proxy_connect_timeout 2s;
      proxy_next_upstream error timeout http_502 http_503 http_504 non_idempotent;
      proxy_next_upstream_tries 3;`

const (
	rollFor = 30 * time.Second
	rollGap = time.Second / 50 // between two requests
)

// Two replicas behind nginx are rolled one after the other under 50 requests a
// second. No caller retries, and none sees anything of it.
func TestRollingReplicasFailsNoCall(t *testing.T) {
	s := newStage(t)
	one, two := s.newGateway("one", ""), s.newGateway("two", "")
	one.start()
	two.start()
	p := s.newProxy()
	p.configure(passTo(nextReplica, one.address(), two.address()))
	p.start()
	s.startOne()
	// There is no worker here: what it would do is not the point, and one operation
	// that is over is looked at without asking it.
	require.NoError(t, s.client.TerminateWorkflow(t.Context(), "op-1", "", "for the test"))

	load := newLoad(s, p.url())
	user := newUser(t, s, p.url())
	done := make(chan struct{})
	go func() {
		defer close(done)
		load.run(time.Now())
	}()
	for _, g := range []*gateway{one, two} {
		load.answers(t, 200)
		old := g.process
		g.signal(syscall.SIGTERM)
		require.Zero(t, old.ExitCode())
		load.answers(t, 50) // by the other one alone
		g.start()
	}
	<-done
	load.wait()
	require.Empty(t, load.failed(), "of %d calls", load.total())
	require.EqualValues(t, rollFor/rollGap, load.total())
	require.Empty(t, user.end(t), "a user was told")
	for _, id := range load.ids {
		require.EqualValues(t, 1, s.runs(id), id)
	}
	require.Positive(t, p.answered(http.StatusAccepted))
	require.Zero(t, p.answered(http.StatusServiceUnavailable)+p.answered(http.StatusBadGateway))
}

// load sends requests at a steady rate, each once.
type load struct {
	s      *stage
	url    string
	client *http.Client
	ids    []string // of the operations that it has started

	group  sync.WaitGroup
	mu     sync.Mutex
	good   int
	faults []string
}

func newLoad(s *stage, url string) *load {
	return &load{s: s, url: url, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: 30 * time.Second}}
}

// run sends each request when it is due, whatever became of those before; what a
// busy machine makes late is sent all the same.
func (l *load) run(began time.Time) {
	for i := range int(rollFor / rollGap) {
		due := time.NewTimer(time.Until(began.Add(time.Duration(i) * rollGap)))
		<-due.C
		who, method, path, body, key := "vera", http.MethodGet, "/v1/operations/op-1", "", ""
		switch i % 10 {
		case 0:
			key = fmt.Sprintf("rolled-%d", i)
			who, method, path, body = "otto", http.MethodPost, "/v1/operations", drainOf("prod", "w1")
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

func (l *load) call(who, method, path, body, key string) {
	header := l.s.as(who)
	if key != "" {
		header.Set(api.HeaderKey, key)
	}
	a, err := send(l.s.t.Context(), l.client, method, l.url+path, body, header)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil:
		l.faults = append(l.faults, fmt.Sprintf("%s %s: %v", method, path, err))
	case a.status >= 300:
		l.faults = append(l.faults, fmt.Sprintf("%s %s: %d %s", method, path, a.status, a.body))
	default:
		l.good++
	}
}

// answers waits for that many more good answers.
func (l *load) answers(t *testing.T, more int) {
	t.Helper()
	was := l.total()
	l.s.eventually("answers come", func() bool { return l.total() >= was+more })
}

func (l *load) wait() { l.group.Wait() }

func (l *load) total() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.good + len(l.faults)
}

func (l *load) failed() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.faults)
}

// user looks at an operation again and again with Ebb's own client.
type user struct {
	stop    context.CancelFunc
	done    chan error
	mu      sync.Mutex
	notices []string
}

func newUser(t *testing.T, s *stage, url string) *user {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	u := &user{stop: cancel, done: make(chan error, 1)}
	c, err := api.NewClient(api.ClientOptions{URL: url, Token: s.tokens["vera"], Notices: func(text string) {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.notices = append(u.notices, text)
	}})
	require.NoError(t, err)
	go func() {
		again := time.NewTicker(rollGap * 5)
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

// end is what the user was told.
func (u *user) end(t *testing.T) []string {
	t.Helper()
	u.stop()
	require.NoError(t, <-u.done)
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.notices
}
