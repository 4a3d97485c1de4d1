package server

import (
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/api/auth"
	"ebb/internal/api/wire"
)

func TestWithoutAValidTokenNothingIsTold(t *testing.T) {
	b := newBed(t)
	b.ops.Add("op-1", "prod", "Running")
	for name, c := range map[string]struct{ header, challenge, detail string }{
		"none":   {"", `Bearer realm="ebb"`, "send a token"},
		"wrong":  {"Bearer ebb_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", `Bearer realm="ebb", error="invalid_token"`, "not known here"},
		"word":   {"Bearer secret", `Bearer realm="ebb", error="invalid_token"`, "not known here"},
		"basic":  {"Basic YTpi", `Bearer realm="ebb", error="invalid_request"`, "must be: Bearer"},
		"empty":  {"Bearer ", `Bearer realm="ebb", error="invalid_request"`, "must be: Bearer"},
		"longer": {"Bearer " + strings.Repeat("a", 16<<10+1), `Bearer realm="ebb", error="invalid_token"`, "longer than"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, path := range []string{"/v1/operations", "/v1/operations/op-1", "/v1/operations/none", "/nowhere", "/metrics"} {
				a := b.do(c.header, "GET", path, "")
				p := a.problem(t)
				require.Equal(t, wire.CodeUnauthenticated, p.Code, path)
				require.Equal(t, http.StatusUnauthorized, a.status)
				require.Equal(t, c.challenge, a.header.Get("WWW-Authenticate"))
				require.Contains(t, p.Detail, c.detail)
			}
			require.Equal(t, wire.CodeUnauthenticated, b.do(c.header, "POST", "/v1/operations", drainW1).problem(t).Code)
		})
		b.server.authFailureLimiter = auth.NewLimiter(auth.FailuresPerSecond, auth.FailuresBurst) // each case from an address of its own
	}
	require.Zero(t, b.ops.Started)
	for _, path := range []string{"/healthz", "/readyz", "/v1/openapi.yaml"} {
		require.Equal(t, http.StatusOK, b.do("", "GET", path, "").status, path)
	}
}

// How the server stands with its clusters is told to those who may see them.
func TestReadinessOfClusters(t *testing.T) {
	age := int64(3)
	prod := wire.FollowedCluster{Cluster: "prod", InStep: true, LastEventSeconds: &age}
	dev := wire.FollowedCluster{Cluster: "dev", Failing: []wire.FailingWatch{{Resource: "nodes", Error: "Unauthorized"}}}
	b := newBed(t, func(o *Options) {
		o.Followed = func() []wire.FollowedCluster { return []wire.FollowedCluster{dev, prod} }
	})
	for who, want := range map[string][]wire.FollowedCluster{"": nil, "vera": {dev, prod}, "prodop": {prod}, "devop": {dev}} {
		var now wire.Readiness
		b.ok(who, "GET", "/readyz", &now)
		require.Equal(t, wire.Readiness{Status: "ok", Endpoints: want}, now, who)
	}
	require.Equal(t, http.StatusUnauthorized, b.do("Bearer ebb_guess", "GET", "/readyz", "").status)
	b.server.lifecycle.Cordon(false)
	b.do("vera", "GET", "/readyz", "").problem(t)
}

// Somebody who guesses is slowed down, and keeps nobody out who has a token.
func TestGuessingIsLimitedByAddress(t *testing.T) {
	b := newBed(t)
	limited := 0
	for range auth.FailuresBurst + 20 {
		a := b.do("Bearer ebb_guess", "GET", "/v1/operations", "")
		if a.status == http.StatusTooManyRequests {
			require.Equal(t, wire.CodeRate, a.problem(t).Code)
			require.Equal(t, "1", a.header.Get("Retry-After"))
			limited++
		}
	}
	require.Positive(t, limited)
	b.ok("vera", "GET", "/v1/operations", nil)
}

// A token that is taken away ends the streams and waits that it has opened.
func TestOpenStreamsEndWithTheirToken(t *testing.T) {
	b := newBed(t)
	b.server.recheckInterval = 20 * time.Millisecond
	b.ops.Add("op-1", "prod", "Running")
	b.ops.Say("hello")
	stream := b.follow("/v1/operations/op-1/events?follow=true")
	_, err := stream.ReadString('\n')
	require.NoError(t, err)
	answered := make(chan answer, 1)
	go func() {
		a, _ := b.try("vera", "GET", "/v1/operations/op-1/wait?timeout=5m", "")
		answered <- a
	}()
	eventually(t, "both are open", func() bool { return b.server.lifecycle.status().Streams == 2 })
	require.NoError(t, os.WriteFile(b.file, []byte("tokens: []\n"), 0o600))
	_, err = io.ReadAll(stream)
	require.Error(t, err, "it is cut")
	require.Equal(t, wire.CodeUnauthenticated, (<-answered).problem(t).Code)
}

func TestRateOfOnePrincipalIsLimited(t *testing.T) {
	b := newBed(t, func(o *Options) { o.PerSecond, o.Burst = 1, 5 })
	clock := time.Now()
	b.server.principalLimiter.Now = func() time.Time { return clock }
	for range 5 {
		b.ok("vera", "GET", "/v1/operations", nil)
	}
	a := b.do("vera", "GET", "/v1/operations", "")
	require.Equal(t, http.StatusTooManyRequests, a.status)
	require.Contains(t, a.problem(t).Detail, "vera sends more than 1 requests a second")
	b.ok("otto", "GET", "/v1/operations", nil)
	clock = clock.Add(time.Second)
	b.ok("vera", "GET", "/v1/operations", nil)
}
