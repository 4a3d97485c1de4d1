package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"

	"ebb/internal/api/wire"
)

// request is one request to the API.
type request struct {
	method    string
	path      []string // segments after /v1, not escaped
	query     url.Values
	key       string // Idempotency-Key
	body      any
	streaming bool // the body is an event stream: the caller reads it, and no timeout applies
	resuming  bool // it continues a log that was being followed, and the user is told so
}

// retryable reports whether the request may be sent again when the outcome of an
// attempt is unknown.
func (r request) retryable() bool { return r.method == http.MethodGet || r.key != "" }

// attempt sends a request once. Unless it is the successful start of a stream, the body
// has been read, and the response needs no closing.
func (c *Client) attempt(ctx context.Context, r request) (*http.Response, attempt) {
	if !r.streaming {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, responseTimeout, errResponseTimeout)
		defer cancel()
	}
	req, err := c.newHTTPRequest(ctx, r)
	if err != nil {
		return nil, attempt{err: &notGatewayError{err.Error()}}
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, attempt{err: connectionError(ctx, err)}
	}
	a := attempt{status: res.StatusCode, header: res.Header}
	if res.StatusCode < 300 && r.streaming {
		return res, a
	}
	defer func() { _ = res.Body.Close() }() // only read from
	body, err := io.ReadAll(io.LimitReader(res.Body, maxResponseBytes))
	if err != nil {
		return nil, attempt{err: fmt.Errorf("the answer broke off: %w", connectionError(ctx, err))}
	}
	res.Body = io.NopCloser(bytes.NewReader(body))
	if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind == wire.ContentTypeProblem {
		var p wire.Problem
		if json.Unmarshal(body, &p) == nil && p.Status == res.StatusCode {
			a.problem = &p
		}
	}
	return res, a
}

var errResponseTimeout = errors.New("no answer within " + responseTimeout.String())

func (c *Client) newHTTPRequest(ctx context.Context, r request) (*http.Request, error) {
	at := c.base.JoinPath(append([]string{"v1"}, escapePath(r.path)...)...)
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
		req.Header.Set("Content-Type", wire.ContentTypeJSON)
		req.GetBody = nil // net/http must not resend it by itself: the caller has to know of repetitions
	}
	if r.key != "" {
		req.Header.Set(wire.HeaderIdempotencyKey, r.key)
	}
	token, err := c.readToken()
	if err != nil {
		return nil, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	req.Header.Set("User-Agent", "ebb")
	return req, nil
}

// escapePath escapes each segment of a path.
func escapePath(parts []string) (out []string) {
	for _, p := range parts {
		out = append(out, url.PathEscape(p))
	}
	return out
}

// connectionError returns why a request has failed: the cause of the context if it has
// ended, else err without the method and URL that net/http adds.
func connectionError(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}

// decodeResponse decodes a JSON body. The error is a *notGatewayError.
func decodeResponse(res *http.Response, into any) error {
	if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind != wire.ContentTypeJSON {
		return &notGatewayError{fmt.Sprintf("the answer is %s and not an Ebb gateway's", contentType(res.Header.Get("Content-Type")))}
	}
	if err := json.NewDecoder(res.Body).Decode(into); err != nil {
		return &notGatewayError{fmt.Sprintf("the answer cannot be read (%v): is the gateway of another version?", err)}
	}
	return nil
}
