package cluster

import (
	"context"
	"io"
	"net/http"
	"strings"
	"time"
)

// A kube-apiserver that has just started refuses what it will allow a moment
// later: it answers before its authorizer has read the roles. Those refusals look
// like any other; only /readyz tells.

// readyTimeout bounds the question whether the API server is ready.
const readyTimeout = 2 * time.Second

// patient tells a refusal of an API server that is not ready as what it is: 503
// with Retry-After, which client-go and the activities try again.
type patient struct {
	next   http.RoundTripper
	readyz string // URL
}

func (p patient) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := p.next.RoundTrip(req)
	if err != nil || resp.StatusCode != http.StatusForbidden {
		return resp, err
	}
	if !p.ready(req) {
		return notReady(resp), nil
	}
	// It may have got ready since it refused.
	again := req.Clone(req.Context())
	if req.Body != nil && req.Body != http.NoBody {
		if req.GetBody == nil {
			return resp, nil
		}
		if again.Body, err = req.GetBody(); err != nil {
			return resp, nil //nolint:nilerr // the refusal is an answer
		}
	}
	_ = resp.Body.Close() // the refusal is asked for once more
	return p.next.RoundTrip(again)
}

// ready asks the API server that has answered req. Who may not even ask that is
// told so by one whose roles are not read yet.
func (p patient) ready(req *http.Request) bool {
	ctx, cancel := context.WithTimeout(req.Context(), readyTimeout)
	defer cancel()
	ask, err := http.NewRequestWithContext(ctx, http.MethodGet, p.readyz, nil)
	if err != nil {
		return false
	}
	for _, name := range []string{"Authorization", "User-Agent"} { // who asks is known by the former or by the connection
		ask.Header[name] = req.Header[name]
	}
	resp, err := p.next.RoundTrip(ask)
	if err != nil {
		return false
	}
	_ = resp.Body.Close() // only the code counts
	return resp.StatusCode == http.StatusOK
}

// notReady stands for a refusal.
func notReady(refusal *http.Response) *http.Response {
	_ = refusal.Body.Close() // what it says is not so
	resp := *refusal
	resp.Status, resp.StatusCode = "503 Service Unavailable", http.StatusServiceUnavailable
	resp.Header = http.Header{"Content-Type": {"text/plain"}, "Retry-After": {"1"}}
	text := "the API server is starting and does not know its roles yet"
	resp.Body, resp.ContentLength = io.NopCloser(strings.NewReader(text)), int64(len(text))
	return &resp
}

// WrappedRoundTripper lets client-go see through the wrapper.
func (p patient) WrappedRoundTripper() http.RoundTripper { return p.next }
