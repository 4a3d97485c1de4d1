// Package client works on operations and clusters through a gateway. It repeats
// calls while a gateway is being replaced: when and for how long is in retry.go.
package client

import (
	"context"
	"crypto/x509"
	"fmt"
	mathrand "math/rand/v2"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"ebb/internal/api/wire"
	"ebb/internal/config"
	"ebb/internal/forecast"
	"ebb/internal/ops"
	"ebb/internal/wait"
)

var (
	_ ops.Client        = (*Client)(nil)
	_ forecast.Clusters = clusters{}
)

// Options configure a client. Only URL is required.
type Options struct {
	URL          string                 // https://…; with a token, http only to loopback
	Token        string                 // sent as a bearer token; never printed
	ReadToken    func() (string, error) // in place of Token, asked before each attempt, as tokens that expire are replaced in their file
	RootCAs      *x509.CertPool         // the gateway's certificate is checked against them; nil = those of the system
	RetryTimeout time.Duration          // for how long an unavailable gateway is retried; 0 = 10 minutes
	Notify       func(string)           // called with one line for the user when retries begin and when they have succeeded; may be nil
}

const (
	defaultRetryTimeout   = 10 * time.Minute
	unknownGatewayTimeout = time.Minute     // where no gateway has answered yet
	responseTimeout       = 2 * time.Minute // of one attempt; a plan may take a minute
	maxResponseBytes      = 64 << 20
)

// Client calls a gateway, and retries while the gateway is being replaced. It may be
// used by several goroutines.
type Client struct {
	base        *url.URL
	readToken   func() (string, error)
	http        *http.Client
	retry       retryPolicy
	notify      func(string)
	seenGateway atomic.Bool // whether a gateway has answered at this URL
	now         func() time.Time
	sleep       func(context.Context, time.Duration) error
}

// New returns a client of the gateway at o.URL, or an error that says which option is
// invalid. It connects with the first call.
func New(o Options) (*Client, error) {
	base, err := url.Parse(o.URL)
	switch {
	case err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https":
		return nil, fmt.Errorf("gateway %q: want a URL such as https://ebb.example.com", o.URL)
	case base.User != nil || base.RawQuery != "" || base.Fragment != "":
		return nil, fmt.Errorf("gateway %s: want no more than scheme, host, port and path", base.Redacted())
	case base.Scheme == "http" && (o.Token != "" || o.ReadToken != nil) && !config.IsLoopback(base.Hostname()):
		return nil, fmt.Errorf("gateway %s: a token is not sent in the clear over a network; use https", o.URL)
	}
	c := &Client{base: base, readToken: o.ReadToken, http: &http.Client{
		Transport:     newTransport(o.RootCAs),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the token must not be sent to another host
	}, notify: o.Notify, now: time.Now, sleep: wait.Sleep}
	if c.readToken == nil {
		c.readToken = func() (string, error) { return o.Token, nil }
	}
	if c.notify == nil {
		c.notify = func(string) {}
	}
	long := o.RetryTimeout
	if long == 0 {
		long = defaultRetryTimeout
	}
	c.retry = retryPolicy{timeout: long, unknownTimeout: unknownGatewayTimeout, random: mathrand.Float64}
	return c, nil
}

// do sends a request until it gets a final response, and decodes that into the value
// that into points to. repeated reports whether an earlier attempt may have been
// carried out although its response was lost.
func (c *Client) do(ctx context.Context, req request, into any) (status int, repeated bool, err error) {
	var state retryState
	for {
		res, a := c.attempt(ctx, req)
		if a.err == nil && a.problem == nil && a.status < 300 {
			a.err = decodeResponse(res, into)
		}
		if res != nil {
			_ = res.Body.Close() // attempt has read it
		}
		result := classify(a, c.seenGateway.Load())
		if result == final {
			c.reportRecovery(&state, c.now())
			return a.status, repeated, c.responseError(a)
		}
		repeated = repeated || result == noResponse
		if err := c.waitToRetry(ctx, &state, req, a, result); err != nil {
			return 0, repeated, err
		}
	}
}

// waitToRetry sleeps until the next attempt and returns nil, or returns at once the
// error to give up with: the context has ended, the failure is permanent, the request
// must not be repeated, or the retry timeout is over.
func (c *Client) waitToRetry(ctx context.Context, state *retryState, req request, a attempt, result outcome) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case result == permanent:
		return fmt.Errorf("gateway %s: %s", c.base.Redacted(), c.describe(a))
	case !req.retryable():
		return fmt.Errorf("gateway %s: %s; the request may have been done and is not repeated, as it has no %s", c.base.Redacted(), c.describe(a), wire.HeaderIdempotencyKey)
	}
	if result == unavailable || a.problem != nil {
		c.seenGateway.Store(true)
	}
	now := c.now()
	pause, ok := state.nextBackoff(c.retry, now, retryAfter(a.header, now), c.seenGateway.Load())
	if !ok {
		return fmt.Errorf("gave up after %s: gateway %s: %s; operations go on without it: try again later, or raise --retry-timeout",
			now.Sub(state.startedAt).Round(time.Second), c.base.Redacted(), c.describe(a))
	}
	if !state.notified {
		state.notified = true
		c.notify(retryNotice(req, result))
	}
	if c.sleep(ctx, pause) != nil {
		return context.Cause(ctx)
	}
	return nil
}

// retryNotice returns what the user is told when retries begin.
func retryNotice(req request, result outcome) string {
	switch {
	case result == limited:
		return "API server takes no more requests from here for now, retrying… (Ctrl-C to stop)"
	case req.resuming:
		return "log stream interrupted by a server restart, resuming…"
	}
	return "API server is restarting, retrying… (Ctrl-C to stop)"
}

// reportRecovery resets the retry state after a success, and tells the user if they
// were told of the retries. when is the time of the success.
func (c *Client) reportRecovery(state *retryState, when time.Time) {
	c.seenGateway.Store(true)
	if state.notified {
		c.notify(fmt.Sprintf("… recovered after %s", when.Sub(state.startedAt).Round(time.Second)))
	}
	*state = retryState{}
}
