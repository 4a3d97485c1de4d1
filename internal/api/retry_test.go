package api

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
)

func TestClassify(t *testing.T) {
	html := http.Header{"Content-Type": {"text/html; charset=utf-8"}}
	json := http.Header{"Content-Type": {typeJSON}}
	problem := func(code Code) *Problem { return &Problem{Code: code} }
	for name, c := range map[string]struct {
		reply reply
		want  verdict
	}{
		"an answer":                         {reply{status: 200, header: json}, answered},
		"started":                           {reply{status: 202, header: json}, answered},
		"a gateway that drains":             {reply{status: 503, header: json, problem: problem(CodeDraining)}, leaving},
		"a gateway without its engine":      {reply{status: 503, header: json, problem: problem(CodeEngineAway)}, leaving},
		"an engine that has failed":         {reply{status: 502, header: json, problem: problem(CodeEngine)}, answered},
		"a fault of the gateway":            {reply{status: 500, header: json, problem: problem(CodeInternal)}, answered},
		"a bad request":                     {reply{status: 400, header: json, problem: problem(CodeBadRequest)}, answered},
		"too many requests":                 {reply{status: 429, header: json, problem: problem(CodeRate)}, answered},
		"a proxy's 502":                     {reply{status: 502, header: html}, absent},
		"a proxy's 503":                     {reply{status: 503, header: html}, absent},
		"a proxy's 504":                     {reply{status: 504, header: http.Header{}}, absent},
		"a proxy's 500":                     {reply{status: 500, header: html}, absent},
		"a page where JSON should be":       {reply{status: 200, header: html}, hopeless},
		"a redirect":                        {reply{status: 302, header: http.Header{}}, hopeless},
		"a proxy that knows no such thing":  {reply{status: 404, header: html}, hopeless},
		"a refused connection":              {reply{err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}}, absent},
		"a connection that was reset":       {reply{err: &net.OpError{Op: "read", Err: syscall.ECONNRESET}}, absent},
		"a name that is not there":          {reply{err: &net.OpError{Op: "dial", Err: &net.DNSError{IsNotFound: true}}}, hopeless},
		"a name server that is not there":   {reply{err: &net.DNSError{IsTemporary: true}}, absent},
		"a certificate of nobody we know":   {reply{err: fmt.Errorf("tls: %w", x509.UnknownAuthorityError{})}, hopeless},
		"a certificate of another":          {reply{err: x509.HostnameError{Certificate: &x509.Certificate{}, Host: "x"}}, hopeless},
		"an answer that cannot be read":     {reply{status: 200, err: &strayError{"x"}}, hopeless},
		"an answer that broke off":          {reply{status: 200, err: errBroken}, absent},
		"a server that says nothing at all": {reply{err: errSilent}, absent},
		"a user who has enough":             {reply{err: context.Canceled}, hopeless},
	} {
		require.Equal(t, c.want, classify(c.reply), name)
	}
}

func TestOnlyWhatIsSafeIsRepeated(t *testing.T) {
	require.True(t, request{method: http.MethodGet}.repeatable())
	require.True(t, request{method: http.MethodPost, key: "k"}.repeatable())
	require.False(t, request{method: http.MethodPost}.repeatable())
}

func TestWaitsGrowAndAreSpread(t *testing.T) {
	epoch := time.Unix(0, 0)
	for _, dice := range []float64{0, 0.5, 0.999} {
		p := patience{long: time.Hour, short: time.Hour, dice: func() float64 { return dice }}
		var o outage
		want, now := time.Second, epoch
		for range 20 {
			wait, ok := o.next(p, now, absent, 0)
			require.True(t, ok)
			require.InDelta(t, float64(want)*(1+jitter*(2*dice-1)), float64(wait), float64(time.Millisecond))
			want = min(time.Duration(float64(want)*growth), lastWait)
			now = now.Add(wait)
		}
	}
}

func TestRetryAfterIsTheLeast(t *testing.T) {
	p := patience{long: time.Hour, short: time.Hour, dice: rand.Float64}
	for range 100 {
		var o outage
		wait, _ := o.next(p, time.Unix(0, 0), leaving, 5*time.Second)
		require.GreaterOrEqual(t, wait, 5*time.Second)
		require.LessOrEqual(t, wait, 7*time.Second)
		var none outage
		wait, _ = none.next(p, time.Unix(0, 0), leaving, 0)
		require.GreaterOrEqual(t, wait, leastStep, "also when the server would have it at once")
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
	p := patience{long: 10 * time.Minute, short: time.Minute, dice: func() float64 { return 0.5 }}
	lasts := func(o outage, verdicts ...verdict) time.Duration {
		began := time.Unix(0, 0)
		for i, now := 0, began; ; i++ {
			wait, ok := o.next(p, now, verdicts[min(i, len(verdicts)-1)], 0)
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
	between(35*time.Second, time.Minute, lasts(outage{}, absent))
	between(9*time.Minute, 10*time.Minute, lasts(outage{}, leaving, absent))
	between(9*time.Minute, 10*time.Minute, lasts(outage{known: true}, absent))
	p.long = 20 * time.Second
	between(5*time.Second, 20*time.Second, lasts(outage{}, absent))
	between(5*time.Second, 20*time.Second, lasts(outage{}, leaving))
}

func TestErrorsOfNoAnswerAreSaidPlainly(t *testing.T) {
	c, err := NewClient(ClientOptions{URL: "https://ebb.example.com"})
	require.NoError(t, err)
	for want, r := range map[string]reply{
		"a proxy answers 502 Bad Gateway: there is no server behind it":                     {status: 502, header: http.Header{}},
		"it redirects to https://login.example.com/, which is not followed with a token":    {status: 302, header: http.Header{"Location": {"https://login.example.com/"}}},
		"it answers 404 Not Found (text/html) and is not an Ebb gateway: is the URL right?": {status: 404, header: http.Header{"Content-Type": {"text/html"}}},
		"you may not (403, request r1)":                                                     {status: 403, problem: &Problem{Status: 403, Detail: "you may not", Instance: "r1"}},
		"connection refused":                                                                {err: errors.New("connection refused")},
	} {
		require.Contains(t, c.describe(r), want)
	}
}
