package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/api/wire"
	"ebb/internal/operation"
	"ebb/internal/ops"
)

// startOperation starts the operation "op-1" past the gateway, of which nothing becomes:
// there is no worker in these tests.
func (s *environment) startOperation() {
	s.t.Helper()
	const id = "op-1"
	_, started, err := s.ops.Start(s.t.Context(), ops.Request{ID: id, Kind: operation.KindDrain, Cluster: "prod", Nodes: []string{"w1"}})
	require.NoError(s.t, err)
	require.True(s.t, started)
}

// From the SIGTERM on, while one request still runs: what is new is sent away, what
// exists is served, streams and waits are told to come again, the internal work
// rests; the running request finishes and its result is kept.
func TestCordonedGateway(t *testing.T) {
	s := newEnvironment(t)
	g := s.newGateway("gateway", "")
	g.start()
	s.startOperation()
	kept := newKeepAliveClient(t, g)
	require.Equal(t, http.StatusOK, kept.do("GET", "/v1/operations").status)
	slow := g.startSlowRequest()
	stream := g.followEvents("op-1", "")
	require.Contains(t, stream.next(t), `"type":"state"`)
	waiting := make(chan response, 1)
	go func() { waiting <- g.do("vera", "GET", "/v1/operations/op-1/wait?timeout=5m", "") }()
	s.eventually("all three run", func() bool {
		_, running, streams := g.lifecycle()
		return running == 3 && streams == 2
	})

	g.signal(syscall.SIGTERM)
	g.waitReady(http.StatusServiceUnavailable)

	place := stream.seq
	require.JSONEq(t, `{"type":"retry","after":"`+place+`"}`, stream.next(t))
	_, err := stream.reader.ReadByte()
	require.ErrorIs(t, err, io.EOF)
	w := <-waiting
	require.Equal(t, http.StatusOK, w.status)
	require.Contains(t, string(w.body), `"type":"retry"`)
	require.NotEmpty(t, w.header.Get("Retry-After"))

	for name, a := range map[string]response{
		"new connection": g.do("otto", "POST", "/v1/operations", drainRequest("prod", "w1"), wire.HeaderIdempotencyKey, "late"),
		"kept alive":     kept.do("POST", "/v1/operations"),
		"new stream":     g.do("vera", "GET", "/v1/operations/op-1/events?follow=true", ""),
		"list":           g.do("vera", "GET", "/v1/operations", ""),
	} {
		require.Equal(t, http.StatusServiceUnavailable, a.status, name)
		a.problem(t, wire.CodeDraining)
		require.Equal(t, "1", a.header.Get("Retry-After"), name)
		require.True(t, a.close, name)
	}
	for _, path := range []string{"/healthz", "/v1/lifecycle", "/v1/operations/op-1", "/v1/operations/op-1/events"} {
		require.Equal(t, http.StatusOK, g.do("vera", "GET", path, "").status, path)
	}
	again := g.do("vera", "GET", "/v1/operations/op-1/wait?timeout=5m", "")
	require.Contains(t, string(again.body), `"type":"retry"`)
	cancelled := g.do("otto", "POST", "/v1/operations/op-1/cancel", "")
	require.Equal(t, http.StatusOK, cancelled.status, "%s", cancelled.body)
	op, err := s.ops.Get(t.Context(), "op-1")
	require.NoError(t, err)
	require.True(t, op.Cancelling)
	metrics := string(g.do("ada", "GET", "/metrics", "").body)
	require.Contains(t, metrics, `ebb_gateway_lifecycle_state{state="Cordoned"} 1`)
	require.Contains(t, metrics, "ebb_gateway_streams 0")

	slow.finish()
	a := <-slow.answer
	require.Equal(t, http.StatusAccepted, a.status, "%s", a.body)
	require.Zero(t, g.process.ExitCode())
	require.EqualValues(t, 1, s.executionCount("slow"), "its result is kept")
	require.Zero(t, s.executionCount("late"))
	_, err = send(t.Context(), http.DefaultClient, "GET", g.url()+"/healthz", "", nil)
	require.Error(t, err, "nobody listens any more")

	g.start()
	rest := g.followEvents("op-1", place)
	require.Contains(t, rest.next(t), "asked to take back", "the successor goes on where the stream was")
}

// A cordon by POST rests the internal work until it is undone, and the gateway
// serves on as if nothing had been.
func TestCordonedByPostAndUndone(t *testing.T) {
	s := newEnvironment(t)
	g := s.newGateway("gateway", "")
	g.start()
	require.Equal(t, http.StatusForbidden, g.do("otto", "POST", "/v1/lifecycle/cordon", "").status)
	require.Equal(t, http.StatusOK, g.do("ada", "POST", "/v1/lifecycle/cordon", "").status)
	g.do("otto", "POST", "/v1/operations", drainRequest("prod", "w1")).problem(t, wire.CodeDraining)
	state, _, _ := g.lifecycle()
	require.Equal(t, "Cordoned", state)
	s.startOperation() // the gauge of open operations is not told of it now
	require.NotContains(t, string(g.do("ada", "GET", "/metrics", "").body), "ebb_gateway_open_operations{")
	require.Equal(t, http.StatusOK, g.do("ada", "POST", "/v1/lifecycle/uncordon", "").status)
	require.Equal(t, http.StatusAccepted, g.do("otto", "POST", "/v1/operations", drainRequest("prod", "w1")).status)
	s.eventually("the internal work goes on", func() bool {
		return strings.Contains(string(g.do("ada", "GET", "/metrics", "").body), `ebb_gateway_open_operations{cluster="prod",kind="drain"} `)
	})
}

// What outlasts the grace is ended before somebody kills the process, with the mark
// that it may be sent again; and it had not been done.
func TestGraceIsOver(t *testing.T) {
	const grace = 6 * time.Second
	s := newEnvironment(t)
	g := s.newGateway("gateway", "  gracePeriod: 6s\n")
	g.start()
	slow := g.startSlowRequest()
	s.eventually("it runs", func() bool {
		_, running, _ := g.lifecycle()
		return running == 1
	})
	began := time.Now()
	g.signal(syscall.SIGTERM)
	a := <-slow.answer
	answered := time.Since(began)
	require.Zero(t, g.process.ExitCode())
	ended := time.Since(began)

	require.Equal(t, http.StatusServiceUnavailable, a.status, "%s", a.body)
	require.Contains(t, a.problem(t, wire.CodeDraining).Detail, "send it again")
	require.Equal(t, "1", a.header.Get("Retry-After"))
	require.Greater(t, answered, grace*3/4, "it was given its time")
	require.Less(t, ended, grace, "nobody had to kill it")
	require.Zero(t, s.executionCount("slow"))

	g.start()
	require.Equal(t, http.StatusAccepted, g.do("otto", "POST", "/v1/operations", drainRequest("prod", "w1"), wire.HeaderIdempotencyKey, "slow").status)
}

// keepAliveClient is one connection that is used again and again.
type keepAliveClient struct {
	t      *testing.T
	g      *gateway
	client *http.Client
}

func newKeepAliveClient(t *testing.T, g *gateway) *keepAliveClient {
	t.Helper()
	return &keepAliveClient{t: t, g: g, client: &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}}
}

func (k *keepAliveClient) do(method, path string) response {
	k.t.Helper()
	body := ""
	if method == http.MethodPost {
		body = drainRequest("prod", "w1")
	}
	a, err := send(k.t.Context(), k.client, method, k.g.url()+path, body, k.g.header("otto"))
	require.NoError(k.t, err)
	return a
}

// eventStream is an event stream that is read line by line.
type eventStream struct {
	reader *bufio.Reader
	seq    string // of the last event
}

// followEvents follows the events of an operation from a place.
func (g *gateway) followEvents(id, after string) *eventStream {
	g.t.Helper()
	ctx, cancel := context.WithCancel(g.t.Context())
	g.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, g.url()+"/v1/operations/"+id+"/events?follow=true&after="+after, nil)
	require.NoError(g.t, err)
	r.Header = g.header("vera")
	response, err := http.DefaultClient.Do(r)
	require.NoError(g.t, err)
	g.t.Cleanup(func() { _ = response.Body.Close() })
	require.Equal(g.t, http.StatusOK, response.StatusCode)
	return &eventStream{reader: bufio.NewReader(response.Body)}
}

// next returns the next line that says something.
func (f *eventStream) next(t *testing.T) string {
	t.Helper()
	for {
		line, err := f.reader.ReadString('\n')
		require.NoError(t, err)
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		var event struct{ Seq string }
		require.NoError(t, json.Unmarshal([]byte(line), &event))
		if event.Seq != "" {
			f.seq = event.Seq
		}
		return line
	}
}
