package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"mime"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"ebb/internal/config"
	"ebb/internal/forecast"
	"ebb/internal/ops"
)

var (
	_ ops.Client        = (*Client)(nil)
	_ forecast.Clusters = clusters{}
)

// ClientOptions say where a gateway is and how long it is waited for.
type ClientOptions struct {
	URL     string        // https://…; http only to this host
	Token   string        // sent as a bearer token; never printed
	Trust   *http.Client  // with the TLS roots to trust; nil = those of the system
	Retry   time.Duration // how long one outage may last; 0 = 10 minutes
	Notices func(string)  // who is told, in words for a person, that the server is waited for
}

const (
	defaultRetry = 10 * time.Minute
	shortRetry   = time.Minute
	answerLimit  = 2 * time.Minute // for one answer; a plan may take a minute
	bodyLimit    = 64 << 20        // of an answer, in bytes
)

// Client talks to operations and clusters through a gateway. It waits for one that
// is being replaced.
type Client struct {
	base     *url.URL
	token    string
	http     *http.Client
	patience patience
	notice   func(string)
	met      atomic.Bool // a gateway has answered here
	now      func() time.Time
	pause    func(context.Context, time.Duration) error
}

// NewClient is a client of the gateway that o names; it connects with the first
// call. The error says what is wrong with the options.
func NewClient(o ClientOptions) (*Client, error) {
	base, err := url.Parse(o.URL)
	switch {
	case err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https":
		return nil, fmt.Errorf("gateway %q: want a URL such as https://ebb.example.com", o.URL)
	case base.User != nil || base.RawQuery != "" || base.Fragment != "":
		return nil, fmt.Errorf("gateway %s: want no more than scheme, host, port and path", base.Redacted())
	case base.Scheme == "http" && o.Token != "" && !config.Loopback(base.Hostname()):
		return nil, fmt.Errorf("gateway %s: a token is not sent in the clear over a network; use https", o.URL)
	}
	c := &Client{base: base, token: o.Token, http: o.Trust, notice: o.Notices, now: time.Now, pause: pause}
	if c.http == nil {
		c.http = &http.Client{}
	}
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // a token goes nowhere else
	if c.notice == nil {
		c.notice = func(string) {}
	}
	long := o.Retry
	if long == 0 {
		long = defaultRetry
	}
	c.patience = patience{long: long, short: shortRetry, dice: mathrand.Float64}
	return c, nil
}

// request is one call of the API.
type request struct {
	method string
	path   []string // its parts after /v1
	query  url.Values
	key    string // Idempotency-Key
	body   any
	stream bool // the answer is read line by line, and may take its time
	// resumed says that a log was being followed here already, so that a wait is an
	// interruption of it.
	resumed bool
}

// repeatable reports whether a call may be sent again when it is not known what
// became of it.
func (r request) repeatable() bool { return r.method == http.MethodGet || r.key != "" }

// Problem errors that have no type of their own.
type problemError struct{ Problem }

func (e *problemError) Error() string {
	text := e.Detail
	if text == "" {
		text = e.Title
	}
	if e.Instance != "" {
		return fmt.Sprintf("%s (%d, request %s)", text, e.Status, e.Instance)
	}
	return fmt.Sprintf("%s (%d)", text, e.Status)
}

// strayError is an answer of something that is no gateway.
type strayError struct{ text string }

func (e *strayError) Error() string { return e.text }

// call makes a call until it is answered, and decodes the answer. repeated says
// that it was sent more than once, so that an earlier one may have been done.
func (c *Client) call(ctx context.Context, r request, into any) (status int, repeated bool, err error) {
	var o outage
	for {
		res, rep := c.attempt(ctx, r)
		if rep.err == nil && rep.problem == nil && rep.status < 300 {
			rep.err = decodeAnswer(res, into)
		}
		if res != nil {
			_ = res.Body.Close() // read to its end by attempt
		}
		v := classify(rep)
		if v == answered {
			c.recovered(&o, c.now())
			return rep.status, repeated, c.failure(rep)
		}
		repeated = repeated || v == absent
		if err := c.wait(ctx, &o, r, rep, v); err != nil {
			return 0, repeated, err
		}
	}
}

// attempt sends a request once. Of an answer that is no success the body is read.
func (c *Client) attempt(ctx context.Context, r request) (*http.Response, reply) {
	if !r.stream {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, answerLimit, errSilent)
		defer cancel()
	}
	req, err := c.request(ctx, r)
	if err != nil {
		return nil, reply{err: &strayError{err.Error()}}
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, reply{err: plain(ctx, err)}
	}
	rep := reply{status: res.StatusCode, header: res.Header}
	if res.StatusCode < 300 && r.stream {
		return res, rep
	}
	defer func() { _ = res.Body.Close() }() // only read from
	body, err := io.ReadAll(io.LimitReader(res.Body, bodyLimit))
	if err != nil {
		return nil, reply{err: fmt.Errorf("the answer broke off: %w", plain(ctx, err))}
	}
	res.Body = io.NopCloser(bytes.NewReader(body))
	if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind == typeProblem {
		var p Problem
		if json.Unmarshal(body, &p) == nil && p.Status == res.StatusCode {
			rep.problem = &p
		}
	}
	return res, rep
}

var errSilent = errors.New("no answer within " + answerLimit.String())

func (c *Client) request(ctx context.Context, r request) (*http.Request, error) {
	at := c.base.JoinPath(append([]string{"v1"}, escaped(r.path)...)...)
	at.RawQuery = r.query.Encode()
	var body io.Reader
	if r.body != nil {
		data, err := json.Marshal(r.body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, at.String(), body)
	if err != nil {
		return nil, err
	}
	if r.body != nil {
		req.Header.Set("Content-Type", typeJSON)
		req.GetBody = nil // or net/http would repeat it itself, and nobody would know
	}
	if r.key != "" {
		req.Header.Set(HeaderKey, r.key)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	req.Header.Set("User-Agent", "ebb")
	return req, nil
}

func escaped(parts []string) (out []string) {
	for _, p := range parts {
		out = append(out, url.PathEscape(p))
	}
	return out
}

// plain is the error of a connection without the URL around it.
func plain(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}

func decodeAnswer(res *http.Response, into any) error {
	if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind != typeJSON {
		return &strayError{fmt.Sprintf("the answer is %s and not an Ebb gateway's", cut(res.Header.Get("Content-Type")))}
	}
	if err := json.NewDecoder(res.Body).Decode(into); err != nil {
		return &strayError{fmt.Sprintf("the answer cannot be read (%v): is the gateway of another version?", err)}
	}
	return nil
}

func cut(kind string) string {
	if kind == "" {
		return "of no type"
	}
	return brief(kind)
}

// failure is the error that an answer states, if it is one.
func (c *Client) failure(rep reply) error {
	c.met.Store(true)
	if rep.problem == nil {
		return nil
	}
	p := *rep.problem
	switch p.Code {
	case CodeBadRequest:
		if len(p.Faults) == 0 {
			p.Faults = []string{p.Detail}
		}
		return &ops.RequestError{Faults: p.Faults}
	case CodeUnauthenticated:
		p.Detail += "; the token comes from --token-file, EBB_TOKEN_FILE or EBB_TOKEN"
	default:
	}
	return &problemError{p}
}

// wait lets some time pass before a call is tried again. Its error is why that is
// not done: it may not be repeated, it cannot help, or it has been tried for too long.
func (c *Client) wait(ctx context.Context, o *outage, r request, rep reply, v verdict) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case v == hopeless:
		return fmt.Errorf("gateway %s: %s", c.base.Redacted(), c.describe(rep))
	case !r.repeatable():
		return fmt.Errorf("gateway %s: %s; the request may have been done and is not repeated, as it has no %s", c.base.Redacted(), c.describe(rep), HeaderKey)
	}
	if v == leaving {
		c.met.Store(true)
	}
	o.known = o.known || c.met.Load() && rep.err != nil
	now := c.now()
	pause, ok := o.next(c.patience, now, v, retryAfter(rep.header, now))
	if !ok {
		return fmt.Errorf("gave up after %s: gateway %s: %s; operations go on without it: try again later, or raise --retry-timeout",
			now.Sub(o.began).Round(time.Second), c.base.Redacted(), c.describe(rep))
	}
	if !o.said {
		o.said = true
		if r.resumed {
			c.notice("log stream interrupted by a server restart, resuming…")
		} else {
			c.notice("API server is restarting, retrying… (Ctrl-C to stop)")
		}
	}
	return c.pause(ctx, pause)
}

// recovered ends an outage; at is when the server was there again.
func (c *Client) recovered(o *outage, at time.Time) {
	c.met.Store(true)
	if o.said {
		c.notice(fmt.Sprintf("… recovered after %s", at.Sub(o.began).Round(time.Second)))
	}
	*o = outage{}
}

// describe says what was answered instead of what was asked for.
func (c *Client) describe(rep reply) string {
	switch {
	case rep.err != nil:
		return rep.err.Error()
	case rep.problem != nil:
		return (&problemError{*rep.problem}).Error()
	case rep.status >= 500:
		return fmt.Sprintf("a proxy answers %d %s: there is no server behind it", rep.status, http.StatusText(rep.status))
	case rep.status >= 300 && rep.status < 400:
		return fmt.Sprintf("it redirects to %s, which is not followed with a token: give that URL", brief(rep.header.Get("Location")))
	}
	return fmt.Sprintf("it answers %d %s (%s) and is not an Ebb gateway: is the URL right?", rep.status, http.StatusText(rep.status), cut(rep.header.Get("Content-Type")))
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
