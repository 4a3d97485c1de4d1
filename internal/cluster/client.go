package cluster

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"ebb/internal/config"
)

const (
	userAgent = "ebb"
	// dialTimeout is for the TCP connection alone: an API server that does not
	// answer in that time is down, and the request is for its caller to repeat.
	dialTimeout = 10 * time.Second
	keepAlive   = 15 * time.Second
	// requestTimeout is for one request that is not a watch. An eviction may take
	// the API server 10 s (20 conflicts on a budget, 500 ms each).
	requestTimeout = 30 * time.Second
)

// NewClient returns a client for the cluster of that section of ebb.yaml, which follows
// the credentials in the kubeconfig when they change. wraps are the innermost
// transports: they see each request as it is sent. Errors name the kubeconfig.
func NewClient(settings config.Cluster, wraps ...transport.WrapperFunc) (kubernetes.Interface, error) {
	rotating, rest, err := newRotatingTransport(settings, wraps...)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfigAndClient(rest, &http.Client{Transport: rotating})
	if err != nil {
		return nil, fmt.Errorf("client of cluster %s: %w", settings.Name, err)
	}
	return client, nil
}

// withTransport returns what Ebb adds to the configuration in a kubeconfig.
func withTransport(rest *restclient.Config, settings config.Cluster, wraps ...transport.WrapperFunc) (*restclient.Config, error) {
	rest.UserAgent = userAgent
	rest.QPS = -1 // the API server's own priority and fairness is the throttle
	rest.ContentType = "application/vnd.kubernetes.protobuf"
	rest.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	rest.Dial = dialAPIServer(settings)
	server, _, err := restclient.DefaultServerUrlFor(rest)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s of cluster %s: %w", settings.Kubeconfig, settings.Name, err)
	}
	for _, wrap := range wraps {
		rest.Wrap(wrap)
	}
	readyz := server.JoinPath("readyz").String()
	rest.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return timeoutTransport{startupTransport{next, readyz}}
	})
	return rest, nil
}

// timeoutTransport gives every request but a watch the time limit requestTimeout;
// rest.Config.Timeout would apply to watches too.
type timeoutTransport struct{ next http.RoundTripper }

func (b timeoutTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if watch := req.URL.Query().Get("watch"); watch == "true" || watch == "1" {
		return b.next.RoundTrip(req)
	}
	ctx, cancel := context.WithTimeout(req.Context(), requestTimeout)
	resp, err := b.next.RoundTrip(req.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err
	}
	resp.Body = &cancelOnClose{ReadCloser: resp.Body, cancel: cancel}
	return resp, nil
}

// WrappedRoundTripper lets client-go see through the wrapper.
func (b timeoutTransport) WrappedRoundTripper() http.RoundTripper { return b.next }

type cancelOnClose struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (c *cancelOnClose) Close() error {
	defer c.cancel()
	return c.ReadCloser.Close()
}
