package api

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/ops"
)

// Of a grace of a minute the last five seconds are the reserve: half for answers,
// then the listeners, and the process has ended before it is killed.
func TestTimetable(t *testing.T) {
	signal := time.Date(2026, 12, 1, 1, 0, 0, 0, time.UTC)
	for grace, want := range map[time.Duration][3]time.Duration{
		time.Minute:      {55 * time.Second, 57500 * time.Millisecond, 58750 * time.Millisecond},
		12 * time.Second: {10 * time.Second, 11 * time.Second, 11500 * time.Millisecond},
		3 * time.Second:  {2500 * time.Millisecond, 2750 * time.Millisecond, 2875 * time.Millisecond},
	} {
		at := timetableOf(signal, grace)
		require.Equal(t, want, [3]time.Duration{at.patience.Sub(signal), at.answered.Sub(signal), at.closed.Sub(signal)})
	}
}

// What each class does in each state.
func TestGate(t *testing.T) {
	type row struct {
		class   class
		follows bool
		want    [3]bool // Serving, Cordoned, Terminating
	}
	for _, c := range []row{
		{always, false, [3]bool{true, true, true}},
		{existing, false, [3]bool{true, true, false}},
		{fresh, false, [3]bool{true, false, false}},
		{stream, false, [3]bool{true, true, false}},
		{stream, true, [3]bool{true, false, false}},
	} {
		l := newLifecycle(func(context.Context) {})
		for i, step := range []func(){func() {}, func() { l.Cordon(false) }, l.Terminate} {
			step()
			_, leave, ok := l.enter(c.class, c.follows)
			require.Equal(t, c.want[i], ok, "%v in %s", c, l.now().State)
			if ok {
				leave()
			}
			require.Zero(t, l.now().Running)
		}
	}
}

func TestLifecycleTransitions(t *testing.T) {
	worked := make(chan string, 10)
	l := newLifecycle(func(ctx context.Context) {
		worked <- "begins"
		<-ctx.Done()
		worked <- "ends"
	})
	require.Equal(t, "begins", <-worked)
	require.True(t, l.Uncordon(), "nothing to undo")
	require.True(t, l.Cordon(false))
	require.Equal(t, "ends", <-worked)
	require.False(t, l.Cordon(false), "it is already")
	require.True(t, l.Uncordon())
	require.Equal(t, "begins", <-worked)
	require.Equal(t, Serving, l.now().State)
	require.True(t, l.Cordon(false))
	require.Equal(t, "ends", <-worked)
	require.False(t, l.Cordon(true), "the signal finds it cordoned")
	require.False(t, l.Uncordon(), "a signal cannot be undone")
	require.Equal(t, Cordoned, l.now().State)
	l.Terminate()
	require.False(t, l.Uncordon())
	require.Equal(t, Terminating, l.now().State)
}

func TestIdleWaitsForWhatIsOwed(t *testing.T) {
	l := newLifecycle(func(context.Context) {})
	<-l.Idle()
	_, first, _ := l.enter(fresh, false)
	_, look, _ := l.enter(existing, false)
	_, second, _ := l.enter(stream, true)
	l.Cordon(true)
	idle := l.Idle()
	first()
	select {
	case <-idle:
		t.Fatal("the stream is open")
	default:
	}
	second()
	<-idle // although somebody still looks at an operation
	require.Equal(t, 1, l.now().Running)
	look()
	require.Zero(t, l.now().Running)
}

// hold keeps a submit running until the gate is opened.
func (b *bed) holdSubmit(key string) (open func(), answered chan answer) {
	b.t.Helper()
	gate := make(chan struct{})
	b.ops.mu.Lock()
	b.ops.gate = gate
	b.ops.mu.Unlock()
	answered = make(chan answer, 1)
	go func() {
		var headers []string
		if key != "" {
			headers = []string{HeaderKey, key}
		}
		a, err := b.try("otto", "POST", "/v1/operations", drainW1, headers...)
		if err != nil {
			a.body = []byte(err.Error())
		}
		answered <- a
	}()
	<-b.ops.entered
	return func() {
		b.ops.mu.Lock()
		b.ops.gate = nil
		b.ops.mu.Unlock()
		close(gate)
	}, answered
}

// waitForState waits until the server is in a state.
func (b *bed) waitForState(s State) {
	b.t.Helper()
	eventually(b.t, string(s), func() bool { return b.server.life.now().State == s })
}

// From the signal on: new work is sent away, what exists is served, what runs is let finish.
func TestCordonedBySignal(t *testing.T) {
	b := newBed(t)
	b.ops.add("op-1", "prod", "Running")
	open, answered := b.holdSubmit("held")
	b.signal()
	b.waitForState(Cordoned)

	for _, c := range [][2]string{{"POST", "/v1/operations"}, {"GET", "/v1/operations"}, {"GET", "/v1/clusters"}, {"POST", "/v1/operations/op-1/pause"},
		{"GET", "/v1/operations/op-1/events?follow=true"}, {"GET", "/readyz"}} {
		body := ""
		if c == [2]string{"POST", "/v1/operations"} {
			body = drainW1
		}
		a := b.do("otto", c[0], c[1], body)
		require.Equal(t, http.StatusServiceUnavailable, a.status, c)
		require.Equal(t, CodeDraining, a.problem(t).Code)
		require.Equal(t, "1", a.header.Get("Retry-After"))
		require.True(t, a.closed, "the connection is not kept")
	}
	require.Equal(t, CodeUnauthenticated, b.do("", "POST", "/v1/operations", drainW1).problem(t).Code, "who has no token does not learn it")
	for _, path := range []string{"/healthz", "/v1/lifecycle", "/v1/operations/op-1", "/v1/operations/op-1/events", "/v1/openapi.yaml"} {
		require.Equal(t, http.StatusOK, b.do("otto", "GET", path, "").status, path)
	}
	require.Equal(t, http.StatusOK, b.do("ada", "GET", "/metrics", "").status)
	require.Equal(t, http.StatusOK, b.do("otto", "POST", "/v1/operations/op-1/cancel", "").status)
	require.Equal(t, CodeNotNow, b.do("ada", "POST", "/v1/lifecycle/uncordon", "").problem(t).Code)
	var w waitAnswer
	a := b.ok("otto", "GET", "/v1/operations/op-1/wait", &w)
	require.Equal(t, "retry", w.Type)
	require.Equal(t, "1", a.header.Get("Retry-After"))
	require.True(t, w.Operation.Cancelling)
	var state lifecycle
	b.ok("otto", "GET", "/v1/lifecycle", &state)
	require.Equal(t, lifecycle{State: Cordoned, Running: 1}, state)

	open()
	done := <-answered
	require.Equal(t, http.StatusAccepted, done.status, "%s", done.body)
	require.NoError(t, b.end())
	require.Equal(t, Terminating, b.server.life.now().State)
	require.Equal(t, 1, b.ops.started)
	_, err := b.try("otto", "GET", "/healthz", "")
	require.Error(t, err, "nobody listens")
}

// A connection that was kept alive since before the signal is told, and closed.
func TestKeptAliveConnectionIsSentAway(t *testing.T) {
	b := newBed(t)
	open, answered := b.holdSubmit("held")
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(b.url, "http://"))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	reader := bufio.NewReader(conn)
	ask := func() (status int, closes bool) {
		_, err := io.WriteString(conn, "GET /v1/clusters HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+b.tokens["vera"]+"\r\n\r\n")
		require.NoError(t, err)
		response, err := http.ReadResponse(reader, nil)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response.StatusCode, response.Close
	}
	status, closes := ask()
	require.Equal(t, http.StatusOK, status)
	require.False(t, closes)
	b.signal()
	b.waitForState(Cordoned)
	status, closes = ask()
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.True(t, closes)
	_, err = reader.ReadByte()
	require.ErrorIs(t, err, io.EOF, "the server has closed it")
	open()
	require.Equal(t, http.StatusAccepted, (<-answered).status)
}

// A cordon by POST lasts until it is undone, and the internal work with it.
func TestCordonedByPost(t *testing.T) {
	b := newBed(t)
	refreshed := func() int {
		return strings.Count(string(b.do("ada", "GET", "/metrics", "").body), `ebb_gateway_refreshes_total{result="done"} 1`)
	}
	eventually(t, "the open operations were counted", func() bool { return refreshed() == 1 })
	var state lifecycle
	b.ok("ada", "POST", "/v1/lifecycle/cordon", &state)
	require.Equal(t, Cordoned, state.State)
	require.Contains(t, string(b.do("ada", "GET", "/metrics", "").body), `ebb_gateway_lifecycle_state{state="Cordoned"} 1`)
	require.Equal(t, CodeDraining, b.do("otto", "POST", "/v1/operations", drainW1).problem(t).Code)
	b.ops.add("op-1", "prod", "Running")
	b.ok("ada", "POST", "/v1/lifecycle/uncordon", &state)
	require.Equal(t, Serving, state.State)
	eventually(t, "the internal work is begun again", func() bool {
		return strings.Contains(string(b.do("ada", "GET", "/metrics", "").body), `ebb_gateway_open_operations{cluster="prod",kind="drain"} 1`)
	})
	require.Equal(t, http.StatusAccepted, b.do("otto", "POST", "/v1/operations", drainW1).status)
}

// What outlasts the grace is answered with the mark that it may be sent again.
func TestGraceIsKept(t *testing.T) {
	b := newBed(t, func(o *Options) { o.Grace = time.Second })
	_, answered := b.holdSubmit("long")
	b.signal()
	a := <-answered
	require.Equal(t, http.StatusServiceUnavailable, a.status, "%s", a.body)
	require.Equal(t, CodeDraining, a.problem(t).Code)
	require.Equal(t, "1", a.header.Get("Retry-After"))
	require.NotContains(t, a.problem(t).Detail, "look first")
	require.NoError(t, b.end())
	require.Zero(t, b.ops.started)
}

func TestGraceWithoutAKeySaysSo(t *testing.T) {
	b := newBed(t, func(o *Options) { o.Grace = time.Second })
	_, answered := b.holdSubmit("")
	b.signal()
	a := <-answered
	require.Equal(t, CodeDraining, a.problem(t).Code)
	require.Contains(t, a.problem(t).Detail, "look first whether it was done")
}

// A caller that never sends the rest of its body is answered at the end of the grace.
func TestGraceEndsASlowBody(t *testing.T) {
	b := newBed(t, func(o *Options) { o.Grace = time.Second })
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(b.url, "http://"))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	_, err = io.WriteString(conn, "POST /v1/operations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"+
		HeaderKey+": slow\r\nAuthorization: Bearer "+b.tokens["otto"]+"\r\n\r\n{")
	require.NoError(t, err)
	eventually(t, "it runs", func() bool { return b.server.life.now().Running == 1 })
	b.signal()
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	require.Equal(t, http.StatusServiceUnavailable, response.StatusCode)
	require.Equal(t, "1", response.Header.Get("Retry-After"))
	require.NoError(t, b.end())
}

// A handler that hears nothing does not keep the process.
func TestGraceEndsWhatHearsNothing(t *testing.T) {
	b := newBed(t, func(o *Options) { o.Grace = time.Second })
	b.ops.stuck = true
	open, answered := b.holdSubmit("stuck")
	defer open()
	b.signal()
	require.NoError(t, b.end())
	require.Zero(t, (<-answered).status, "it was cut")
}

func TestWaitEndsWithTheOperationOrTheTime(t *testing.T) {
	b := newBed(t)
	b.ops.add("op-1", "prod", "Running")
	var w waitAnswer
	b.ok("vera", "GET", "/v1/operations/op-1/wait?timeout=1s", &w)
	require.Equal(t, "timeout", w.Type)
	require.Equal(t, ops.Running, w.Operation.State)
	answered := make(chan answer, 1)
	go func() {
		a, _ := b.try("vera", "GET", "/v1/operations/op-1/wait?timeout=5m", "")
		answered <- a
	}()
	eventually(t, "it waits", func() bool { return b.server.life.now().Streams == 1 })
	b.ops.finish()
	require.NoError(t, json.Unmarshal((<-answered).body, &w))
	require.Equal(t, "end", w.Type)
	require.Equal(t, ops.Done, w.Operation.State)
	eventually(t, "nobody waits", func() bool { return b.server.life.now() == lifecycle{State: Serving} })
}

func TestWaitIsInterruptedByACordon(t *testing.T) {
	b := newBed(t)
	b.ops.add("op-1", "prod", "Running")
	answered := make(chan answer, 1)
	go func() {
		a, _ := b.try("vera", "GET", "/v1/operations/op-1/wait?timeout=5m", "")
		answered <- a
	}()
	eventually(t, "it waits", func() bool { return b.server.life.now().Streams == 1 })
	b.signal()
	a := <-answered
	var w waitAnswer
	require.NoError(t, json.Unmarshal(a.body, &w))
	require.Equal(t, "retry", w.Type)
	require.Equal(t, "1", a.header.Get("Retry-After"))
	require.NoError(t, b.end())
}

func TestStreamsAreBounded(t *testing.T) {
	b := newBed(t, func(o *Options) { o.MaxStreams = 1 })
	b.ops.add("op-1", "prod", "Running")
	b.follow("/v1/operations/op-1/events?follow=true")
	require.Equal(t, CodeRate, b.do("vera", "GET", "/v1/operations/op-1/wait", "").problem(t).Code)
	require.Equal(t, CodeRate, b.do("vera", "GET", "/v1/operations/op-1/events?follow=true", "").problem(t).Code)
	b.ok("vera", "GET", "/v1/operations/op-1/events", nil)
}

// An engine that is away is told apart from one that fails.
func TestEngineThatIsAway(t *testing.T) {
	b := newBed(t)
	b.ops.add("op-1", "prod", "Running")
	for _, c := range []struct {
		err    error
		status int
		code   Code
	}{
		{context.DeadlineExceeded, 503, CodeEngineAway},
		{io.ErrUnexpectedEOF, 502, CodeEngine},
	} {
		b.ops.change(func() { b.ops.failing = c.err })
		for _, ask := range [][3]string{{"GET", "/v1/operations/op-1", ""}, {"POST", "/v1/operations", drainW1}, {"GET", "/v1/operations", ""}} {
			a := b.do("otto", ask[0], ask[1], ask[2])
			require.Equal(t, c.status, a.status, "%s", a.body)
			require.Equal(t, c.code, a.problem(t).Code)
			require.Equal(t, c.code == CodeEngineAway, a.header.Get("Retry-After") != "")
		}
	}
}

// A panic is answered like any fault, and the server goes on.
func TestPanicIsAProblem(t *testing.T) {
	b := newBed(t)
	b.server.table = newTable(append(routes(), route{"GET", "/panic", "", anybody, always, func(*Server, *call) error { panic("oh") }}))
	r, err := http.NewRequestWithContext(t.Context(), "GET", b.url+"/panic", nil)
	require.NoError(t, err)
	response, err := b.client.Do(r)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	require.Equal(t, http.StatusInternalServerError, response.StatusCode)
	var p Problem
	require.NoError(t, json.NewDecoder(response.Body).Decode(&p))
	require.Equal(t, CodeInternal, p.Code)
	require.NotContains(t, p.Detail, "oh")
	require.Equal(t, 1, b.logs.FilterMessageSnippet("panic").Len())
	b.ok("", "GET", "/healthz", nil)
	require.Zero(t, b.server.life.now().Running)
}
