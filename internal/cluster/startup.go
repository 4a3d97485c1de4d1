package cluster

import (
	"context"
	"io"
	"net/http"
	"strings"
	"time"
)

// readyTimeout bounds the request for /readyz.
const readyTimeout = 2 * time.Second

// startupTransport handles the 403 of a kube-apiserver that has just started: it
// answers before its authorizer has read the roles, and so forbids what it allows a
// moment later. Such a 403 looks like any other, so /readyz is asked. When the API
// server is not ready, the caller gets 503 with Retry-After, which client-go and the
// activities retry; when it is, the request is sent once more.
type startupTransport struct {
	next   http.RoundTripper
	readyz string // URL
}

func (p startupTransport) RoundTrip(req *http.Request) (*http.Response, error) {
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

// ready reports whether the API server that has answered req is ready. One that
// forbids /readyz as well has not read its roles yet.
func (p startupTransport) ready(req *http.Request) bool {
	ctx, cancel := context.WithTimeout(req.Context(), readyTimeout)
	defer cancel()
	ask, err := http.NewRequestWithContext(ctx, http.MethodGet, p.readyz, nil)
	if err != nil {
		return false
	}
	for _, name := range []string{"Authorization", "User-Agent"} { // the user is known by the former, or by the connection's certificate
		ask.Header[name] = req.Header[name]
	}
	resp, err := p.next.RoundTrip(ask)
	if err != nil {
		return false
	}
	_ = resp.Body.Close() // only the code counts
	return resp.StatusCode == http.StatusOK
}

// notReady returns the 503 that replaces a 403.
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
func (p startupTransport) WrappedRoundTripper() http.RoundTripper { return p.next }
