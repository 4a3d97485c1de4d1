package server

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

	"ebb/internal/api/wire"
	"ebb/internal/ops"
)

// holdSubmit sends a request to start an operation that is in flight until open is
// called.
func (b *bed) holdSubmit(key string) (open func(), answered chan answer) {
	b.t.Helper()
	waiting, open := b.ops.Hold()
	answered = make(chan answer, 1)
	go func() {
		var headers []string
		if key != "" {
			headers = []string{wire.HeaderIdempotencyKey, key}
		}
		a, err := b.try("otto", "POST", "/v1/operations", drainW1, headers...)
		if err != nil {
			a.body = []byte(err.Error())
		}
		answered <- a
	}()
	<-waiting
	return open, answered
}

// waitForCordoned waits until the server is cordoned.
func (b *bed) waitForCordoned() {
	b.t.Helper()
	eventually(b.t, "cordoned", func() bool { return b.server.lifecycle.status().State == wire.Cordoned })
}

// After the signal new requests get 503, status is served, and requests in flight finish.
func TestCordonedBySignal(t *testing.T) {
	b := newBed(t)
	b.ops.Add("op-1", "prod", "Running")
	open, answered := b.holdSubmit("held")
	b.signal()
	b.waitForCordoned()

	for _, c := range [][2]string{{"POST", "/v1/operations"}, {"GET", "/v1/operations"}, {"GET", "/v1/clusters"}, {"POST", "/v1/operations/op-1/pause"},
		{"GET", "/v1/operations/op-1/events?follow=true"}, {"GET", "/readyz"}} {
		body := ""
		if c == [2]string{"POST", "/v1/operations"} {
			body = drainW1
		}
		a := b.do("otto", c[0], c[1], body)
		require.Equal(t, http.StatusServiceUnavailable, a.status, c)
		require.Equal(t, wire.CodeDraining, a.problem(t).Code)
		require.Equal(t, "1", a.header.Get("Retry-After"))
		require.True(t, a.closed, "the connection is not kept")
	}
	require.Equal(t, wire.CodeUnauthenticated, b.do("", "POST", "/v1/operations", drainW1).problem(t).Code, "who has no token does not learn it")
	for _, path := range []string{"/healthz", "/v1/lifecycle", "/v1/operations/op-1", "/v1/operations/op-1/events", "/v1/openapi.yaml"} {
		require.Equal(t, http.StatusOK, b.do("otto", "GET", path, "").status, path)
	}
	require.Equal(t, http.StatusOK, b.do("ada", "GET", "/metrics", "").status)
	require.Equal(t, http.StatusOK, b.do("otto", "POST", "/v1/operations/op-1/cancel", "").status)
	require.Equal(t, wire.CodeNotNow, b.do("ada", "POST", "/v1/lifecycle/uncordon", "").problem(t).Code)
	var w wire.WaitAnswer
	a := b.ok("otto", "GET", "/v1/operations/op-1/wait", &w)
	require.Equal(t, "retry", w.Type)
	require.Equal(t, "1", a.header.Get("Retry-After"))
	require.True(t, w.Operation.Cancelling)
	var state wire.Lifecycle
	b.ok("otto", "GET", "/v1/lifecycle", &state)
	require.Equal(t, wire.Lifecycle{State: wire.Cordoned, Running: 1}, state)

	open()
	done := <-answered
	require.Equal(t, http.StatusAccepted, done.status, "%s", done.body)
	require.NoError(t, b.end())
	require.Equal(t, wire.Terminating, b.server.lifecycle.status().State)
	require.Equal(t, 1, b.ops.Started)
	_, err := b.try("otto", "GET", "/healthz", "")
	require.Error(t, err, "nobody listens")
}

// A connection that was kept alive since before the signal gets a 503, and is closed.
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
	b.waitForCordoned()
	status, closes = ask()
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.True(t, closes)
	_, err = reader.ReadByte()
	require.ErrorIs(t, err, io.EOF, "the server has closed it")
	open()
	require.Equal(t, http.StatusAccepted, (<-answered).status)
}

// A cordon by POST lasts until it is undone; the background work stops meanwhile.
func TestCordonedByPost(t *testing.T) {
	b := newBed(t)
	refreshed := func() int {
		return strings.Count(string(b.do("ada", "GET", "/metrics", "").body), `ebb_gateway_refreshes_total{result="done"} 1`)
	}
	eventually(t, "the open operations were counted", func() bool { return refreshed() == 1 })
	var state wire.Lifecycle
	b.ok("ada", "POST", "/v1/lifecycle/cordon", &state)
	require.Equal(t, wire.Cordoned, state.State)
	require.Contains(t, string(b.do("ada", "GET", "/metrics", "").body), `ebb_gateway_lifecycle_state{state="Cordoned"} 1`)
	require.Equal(t, wire.CodeDraining, b.do("otto", "POST", "/v1/operations", drainW1).problem(t).Code)
	b.ops.Add("op-1", "prod", "Running")
	b.ok("ada", "POST", "/v1/lifecycle/uncordon", &state)
	require.Equal(t, wire.Serving, state.State)
	eventually(t, "the internal work is begun again", func() bool {
		return strings.Contains(string(b.do("ada", "GET", "/metrics", "").body), `ebb_gateway_open_operations{cluster="prod",kind="drain"} 1`)
	})
	require.Equal(t, http.StatusAccepted, b.do("otto", "POST", "/v1/operations", drainW1).status)
}

// A request that outlasts the grace period gets a 503, so that it is sent again.
func TestGraceIsKept(t *testing.T) {
	b := newBed(t, func(o *Options) { o.Grace = time.Second })
	_, answered := b.holdSubmit("long")
	b.signal()
	a := <-answered
	require.Equal(t, http.StatusServiceUnavailable, a.status, "%s", a.body)
	require.Equal(t, wire.CodeDraining, a.problem(t).Code)
	require.Equal(t, "1", a.header.Get("Retry-After"))
	require.NotContains(t, a.problem(t).Detail, "look first")
	require.NoError(t, b.end())
	require.Zero(t, b.ops.Started)
}

func TestGraceWithoutAKeySaysSo(t *testing.T) {
	b := newBed(t, func(o *Options) { o.Grace = time.Second })
	_, answered := b.holdSubmit("")
	b.signal()
	a := <-answered
	require.Equal(t, wire.CodeDraining, a.problem(t).Code)
	require.Contains(t, a.problem(t).Detail, "look first whether it was done")
}

// A client that does not send the rest of its body gets a response at the end of the grace period.
func TestGraceEndsASlowBody(t *testing.T) {
	b := newBed(t, func(o *Options) { o.Grace = time.Second })
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(b.url, "http://"))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	_, err = io.WriteString(conn, "POST /v1/operations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"+
		wire.HeaderIdempotencyKey+": slow\r\nAuthorization: Bearer "+b.tokens["otto"]+"\r\n\r\n{")
	require.NoError(t, err)
	eventually(t, "it runs", func() bool { return b.server.lifecycle.status().Running == 1 })
	b.signal()
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	require.Equal(t, http.StatusServiceUnavailable, response.StatusCode)
	require.Equal(t, "1", response.Header.Get("Retry-After"))
	require.NoError(t, b.end())
}

// sendHead sends the head of a request of which 100 bytes of body are to come, and
// returns the connection.
func (b *bed) sendHead(head string, headers ...string) net.Conn {
	b.t.Helper()
	conn, err := new(net.Dialer).DialContext(b.t.Context(), "tcp", strings.TrimPrefix(b.url, "http://"))
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, head+" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"+strings.Join(append(headers, "", ""), "\r\n"))
	require.NoError(b.t, err)
	return conn
}

// A body that never comes keeps nobody from an answer, with a token or without, and
// does not keep the server from its end.
func TestBodyThatNeverComes(t *testing.T) {
	b := newBed(t)
	token := "Authorization: Bearer " + b.tokens["vera"]
	ask := func(status int, head string, headers ...string) {
		t.Helper()
		conn := b.sendHead(head, headers...)
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err, head)
		defer func() { _ = response.Body.Close() }()
		require.Equal(t, status, response.StatusCode, head)
		require.True(t, response.Close, head)
		_, err = io.Copy(io.Discard, response.Body)
		require.NoError(t, err)
	}
	ask(http.StatusUnauthorized, "POST /v1/operations")
	ask(http.StatusForbidden, "POST /v1/operations", token)
	ask(http.StatusNotFound, "POST /nowhere", token)
	ask(http.StatusOK, "GET /v1/operations", token)
	ask(http.StatusOK, "GET /healthz")
	open, answered := b.holdSubmit("held")
	b.signal()
	b.waitForCordoned()
	ask(http.StatusUnauthorized, "POST /v1/operations")
	ask(http.StatusServiceUnavailable, "GET /v1/operations", token)
	_ = b.sendHead("POST /v1/operations")
	open()
	require.Equal(t, http.StatusAccepted, (<-answered).status)
	began := time.Now()
	require.NoError(t, b.end())
	require.Less(t, time.Since(began), 20*time.Second, "the grace is 30 s")
}

// With nothing to wait for, the server goes on answering for a while after the signal.
func TestLameDuckIsServed(t *testing.T) {
	b := newBed(t, func(o *Options) { o.LameDuck = 2 * time.Second })
	began := time.Now()
	b.signal()
	b.waitForCordoned()
	require.Equal(t, wire.CodeDraining, b.do("otto", "POST", "/v1/operations", drainW1).problem(t).Code)
	require.Equal(t, http.StatusServiceUnavailable, b.do("", "GET", "/readyz", "").status)
	require.NoError(t, b.end())
	require.GreaterOrEqual(t, time.Since(began), 2*time.Second)
}

// A server that leaves does everything, on connections that it closes afterwards; one that
// nobody has used since is closed with the signal, not when the lame duck's time is over.
func TestLeavingServerServes(t *testing.T) {
	b := newBed(t, func(o *Options) { o.LameDuck = 5 * time.Second })
	idle, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(b.url, "http://"))
	require.NoError(t, err)
	defer func() { _ = idle.Close() }()
	_, err = io.WriteString(idle, "GET /healthz HTTP/1.1\r\nHost: gateway\r\n\r\n")
	require.NoError(t, err)
	reader := bufio.NewReader(idle)
	first, err := http.ReadResponse(reader, nil)
	require.NoError(t, err)
	_, err = io.ReadAll(first.Body)
	require.NoError(t, err)
	require.NoError(t, first.Body.Close())
	require.False(t, first.Close)

	b.server.Leave()
	require.Equal(t, http.StatusServiceUnavailable, b.do("", "GET", "/readyz", "").status)
	a := b.do("otto", "POST", "/v1/operations", drainW1)
	require.Equal(t, http.StatusAccepted, a.status)
	require.True(t, a.closed)
	began := time.Now()
	b.signal()
	_, err = reader.ReadByte()
	require.ErrorIs(t, err, io.EOF)
	require.Less(t, time.Since(began), 4*time.Second)
}

// A handler that ignores its context does not delay the end of the process.
func TestGraceEndsHandlersThatIgnoreTheirContext(t *testing.T) {
	b := newBed(t, func(o *Options) { o.Grace = time.Second })
	b.ops.Stuck = true
	open, answered := b.holdSubmit("stuck")
	defer open()
	b.signal()
	require.NoError(t, b.end())
	require.Zero(t, (<-answered).status, "it was cut")
}

func TestWaitEndsWithTheOperationOrTheTime(t *testing.T) {
	b := newBed(t)
	b.ops.Add("op-1", "prod", "Running")
	var w wire.WaitAnswer
	b.ok("vera", "GET", "/v1/operations/op-1/wait?timeout=1s", &w)
	require.Equal(t, "timeout", w.Type)
	require.Equal(t, ops.Running, w.Operation.State)
	answered := make(chan answer, 1)
	go func() {
		a, _ := b.try("vera", "GET", "/v1/operations/op-1/wait?timeout=5m", "")
		answered <- a
	}()
	eventually(t, "it waits", func() bool { return b.server.lifecycle.status().Streams == 1 })
	b.ops.Finish()
	require.NoError(t, json.Unmarshal((<-answered).body, &w))
	require.Equal(t, "end", w.Type)
	require.Equal(t, ops.Done, w.Operation.State)
	eventually(t, "nobody waits", func() bool { return b.server.lifecycle.status() == wire.Lifecycle{State: wire.Serving} })
}

func TestWaitIsInterruptedByACordon(t *testing.T) {
	b := newBed(t)
	b.ops.Add("op-1", "prod", "Running")
	answered := make(chan answer, 1)
	go func() {
		a, _ := b.try("vera", "GET", "/v1/operations/op-1/wait?timeout=5m", "")
		answered <- a
	}()
	eventually(t, "it waits", func() bool { return b.server.lifecycle.status().Streams == 1 })
	b.signal()
	a := <-answered
	var w wire.WaitAnswer
	require.NoError(t, json.Unmarshal(a.body, &w))
	require.Equal(t, "retry", w.Type)
	require.Equal(t, "1", a.header.Get("Retry-After"))
	require.NoError(t, b.end())
}

// One viewer cannot take all streams, and all viewers together not more than there are.
func TestStreamsAreBounded(t *testing.T) {
	b := newBed(t, func(o *Options) { o.MaxStreams, o.MaxStreamsPerPrincipal = 2, 1 })
	b.ops.Add("op-1", "prod", "Running")
	b.follow("/v1/operations/op-1/events?follow=true")
	for _, path := range []string{"/v1/operations/op-1/wait", "/v1/operations/op-1/events?follow=true"} {
		a := b.do("vera", "GET", path, "")
		require.Equal(t, wire.CodeRate, a.problem(t).Code)
		require.Contains(t, a.problem(t).Detail, "vera has 1 streams and waits open")
		require.Equal(t, "1", a.header.Get("Retry-After"))
	}
	var w wire.WaitAnswer
	b.ok("otto", "GET", "/v1/operations/op-1/wait?timeout=1s", &w)
	require.Equal(t, "timeout", w.Type, "another one's streams are not taken")

	held := make(chan answer, 1)
	go func() {
		a, _ := b.try("otto", "GET", "/v1/operations/op-1/wait?timeout=5m", "")
		held <- a
	}()
	eventually(t, "it waits", func() bool { return b.server.lifecycle.status().Streams == 2 })
	require.Contains(t, b.do("ada", "GET", "/v1/operations/op-1/wait", "").problem(t).Detail, "this server has 2 streams")
	b.ok("vera", "GET", "/v1/operations/op-1/events", nil)
	b.ops.Finish()
	require.Equal(t, http.StatusOK, (<-held).status)
	eventually(t, "all are given back", func() bool {
		streams := b.server.lifecycle.streams
		streams.mu.Lock()
		defer streams.mu.Unlock()
		return streams.all == 0 && len(streams.of) == 0
	})
}

// An engine that does not answer is told from one that fails.
func TestEngineThatIsAway(t *testing.T) {
	b := newBed(t)
	b.ops.Add("op-1", "prod", "Running")
	for _, c := range []struct {
		err    error
		status int
		code   wire.Code
	}{
		{context.DeadlineExceeded, 503, wire.CodeEngineAway},
		{io.ErrUnexpectedEOF, 502, wire.CodeEngine},
	} {
		b.ops.Fail(c.err)
		for _, ask := range [][3]string{{"GET", "/v1/operations/op-1", ""}, {"POST", "/v1/operations", drainW1}, {"GET", "/v1/operations", ""}} {
			a := b.do("otto", ask[0], ask[1], ask[2])
			require.Equal(t, c.status, a.status, "%s", a.body)
			require.Equal(t, c.code, a.problem(t).Code)
			require.Equal(t, c.code == wire.CodeEngineAway, a.header.Get("Retry-After") != "")
		}
	}
}

// A panic becomes a 500, and the server goes on.
func TestPanicIsAProblem(t *testing.T) {
	b := newBed(t)
	b.server.router = newRouter(append(routes(), route{"GET", "/panic", "", public, alwaysServed, func(*Server, *exchange) error { panic("oh") }}))
	r, err := http.NewRequestWithContext(t.Context(), "GET", b.url+"/panic", nil)
	require.NoError(t, err)
	response, err := b.client.Do(r)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	require.Equal(t, http.StatusInternalServerError, response.StatusCode)
	var p wire.Problem
	require.NoError(t, json.NewDecoder(response.Body).Decode(&p))
	require.Equal(t, wire.CodeInternal, p.Code)
	require.NotContains(t, p.Detail, "oh")
	require.Equal(t, 1, b.logs.FilterMessageSnippet("panic").Len())
	b.ok("", "GET", "/healthz", nil)
	require.Zero(t, b.server.lifecycle.status().Running)
}
