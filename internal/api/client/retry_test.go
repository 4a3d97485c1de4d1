package client

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/api/wire"
)

func TestClassify(t *testing.T) {
	html := http.Header{"Content-Type": {"text/html; charset=utf-8"}}
	json := http.Header{"Content-Type": {wire.ContentTypeJSON}}
	problem := func(code wire.Code) *wire.Problem { return &wire.Problem{Code: code} }
	for name, c := range map[string]struct {
		reply attempt
		want  outcome
	}{
		"an answer":                         {attempt{status: 200, header: json}, final},
		"started":                           {attempt{status: 202, header: json}, final},
		"a gateway that drains":             {attempt{status: 503, header: json, problem: problem(wire.CodeDraining)}, unavailable},
		"a gateway without its engine":      {attempt{status: 503, header: json, problem: problem(wire.CodeEngineAway)}, unavailable},
		"an engine that has failed":         {attempt{status: 502, header: json, problem: problem(wire.CodeEngine)}, final},
		"a fault of the gateway":            {attempt{status: 500, header: json, problem: problem(wire.CodeInternal)}, final},
		"a bad request":                     {attempt{status: 400, header: json, problem: problem(wire.CodeBadRequest)}, final},
		"too many requests":                 {attempt{status: 429, header: json, problem: problem(wire.CodeRate)}, limited},
		"too many requests for a proxy":     {attempt{status: 429, header: html}, limited},
		"a proxy's 502":                     {attempt{status: 502, header: html}, noResponse},
		"a proxy's 503":                     {attempt{status: 503, header: html}, noResponse},
		"a proxy's 504":                     {attempt{status: 504, header: http.Header{}}, noResponse},
		"a proxy's 500":                     {attempt{status: 500, header: html}, noResponse},
		"a page where JSON should be":       {attempt{status: 200, header: html}, permanent},
		"a redirect":                        {attempt{status: 302, header: http.Header{}}, permanent},
		"a proxy that knows no such thing":  {attempt{status: 404, header: html}, permanent},
		"a refused connection":              {attempt{err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}}, noResponse},
		"a connection that was reset":       {attempt{err: &net.OpError{Op: "read", Err: syscall.ECONNRESET}}, noResponse},
		"a name that is not there":          {attempt{err: &net.OpError{Op: "dial", Err: &net.DNSError{IsNotFound: true}}}, permanent},
		"a name server that is not there":   {attempt{err: &net.DNSError{IsTemporary: true}}, noResponse},
		"a certificate of nobody we know":   {attempt{err: fmt.Errorf("tls: %w", x509.UnknownAuthorityError{})}, permanent},
		"a certificate of another":          {attempt{err: x509.HostnameError{Certificate: &x509.Certificate{}, Host: "x"}}, permanent},
		"an answer that cannot be read":     {attempt{status: 200, err: &notGatewayError{"x"}}, permanent},
		"an answer that broke off":          {attempt{status: 200, err: errStreamBroken}, noResponse},
		"a server that says nothing at all": {attempt{err: errResponseTimeout}, noResponse},
		"a user who has enough":             {attempt{err: context.Canceled}, permanent},
	} {
		require.Equal(t, c.want, classify(c.reply, false), name)
		if name != "a name that is not there" {
			require.Equal(t, c.want, classify(c.reply, true), name)
		}
	}
	require.Equal(t, noResponse, classify(attempt{err: &net.DNSError{IsNotFound: true}}, true), "a name that was there")
}

func TestOnlyWhatIsSafeIsRepeated(t *testing.T) {
	require.True(t, request{method: http.MethodGet}.retryable())
	require.True(t, request{method: http.MethodPost, key: "k"}.retryable())
	require.False(t, request{method: http.MethodPost}.retryable())
}

func TestWaitsGrowAndAreSpread(t *testing.T) {
	epoch := time.Unix(0, 0)
	for _, dice := range []float64{0, 0.5, 0.999} {
		p := retryPolicy{timeout: time.Hour, unknownTimeout: time.Hour, random: func() float64 { return dice }}
		var o retryState
		want, now := time.Second, epoch
		for range 20 {
			wait, ok := o.nextBackoff(p, now, 0, true)
			require.True(t, ok)
			require.InDelta(t, float64(want)*(1+jitter*(2*dice-1)), float64(wait), float64(time.Millisecond))
			want = min(time.Duration(float64(want)*backoffFactor), maxBackoff)
			now = now.Add(wait)
		}
	}
}

func TestRetryAfterIsTheLeast(t *testing.T) {
	p := retryPolicy{timeout: time.Hour, unknownTimeout: time.Hour, random: rand.Float64}
	for range 100 {
		var o retryState
		wait, _ := o.nextBackoff(p, time.Unix(0, 0), 5*time.Second, true)
		require.GreaterOrEqual(t, wait, 5*time.Second)
		require.LessOrEqual(t, wait, 7*time.Second)
		var none retryState
		wait, _ = none.nextBackoff(p, time.Unix(0, 0), 0, true)
		require.GreaterOrEqual(t, wait, minBackoff, "also when the server would have it at once")
	}
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"": 0, "3": 3 * time.Second, "0": 0, "-7": 0, "soon": 0, "99999999": time.Hour,
		"Tue, 01 Dec 2026 00:00:09 GMT": 9 * time.Second, "Tue, 01 Dec 2020 00:00:09 GMT": 0,
	} {
		require.Equal(t, want, retryAfter(http.Header{"Retry-After": {text}}, now), text)
	}
}

func TestPatienceEnds(t *testing.T) {
	p := retryPolicy{timeout: 10 * time.Minute, unknownTimeout: time.Minute, random: func() float64 { return 0.5 }}
	lasts := func(seenGateway bool) time.Duration {
		var o retryState
		began := time.Unix(0, 0)
		for now := began; ; {
			wait, ok := o.nextBackoff(p, now, 0, seenGateway)
			if !ok {
				return now.Sub(began)
			}
			now = now.Add(wait)
		}
	}
	between := func(least, most, got time.Duration) {
		t.Helper()
		require.Greater(t, got, least)
		require.LessOrEqual(t, got, most)
	}
	between(35*time.Second, time.Minute, lasts(false))
	between(9*time.Minute, 10*time.Minute, lasts(true))
	p.timeout = 20 * time.Second
	between(5*time.Second, 20*time.Second, lasts(false))
	between(5*time.Second, 20*time.Second, lasts(true))
}

func TestErrorsOfNoAnswerAreSaidPlainly(t *testing.T) {
	c, err := New(Options{URL: "https://ebb.example.com"})
	require.NoError(t, err)
	for want, r := range map[string]attempt{
		"a proxy answers 502 Bad Gateway: there is no server behind it":                     {status: 502, header: http.Header{}},
		"it redirects to https://login.example.com/, which is not followed with a token":    {status: 302, header: http.Header{"Location": {"https://login.example.com/"}}},
		"it answers 404 Not Found (text/html) and is not an Ebb gateway: is the URL right?": {status: 404, header: http.Header{"Content-Type": {"text/html"}}},
		"you may not (403, request r1)":                                                     {status: 403, problem: &wire.Problem{Status: 403, Detail: "you may not", Instance: "r1"}},
		"connection refused":                                                                {err: errors.New("connection refused")},
	} {
		require.Contains(t, c.describe(r), want)
	}
}
