package cluster

import (
	"fmt"
	"net/http"
	"sync"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"

	"ebb/internal/config"
)

// rotatingTransport sends each request with the credentials that the kubeconfig has at
// that moment, so that a drain or a watch that runs goes on when a token or certificate
// is replaced. While the file is missing, broken or for another server, the last
// credentials stay in use.
type rotatingTransport struct {
	settings config.Cluster
	wraps    []transport.WrapperFunc

	mu      sync.Mutex
	origin  origin
	server  string // host of the API server
	current http.RoundTripper
}

// newRotatingTransport returns the transport and the configuration that it was made
// from. Errors name the kubeconfig.
func newRotatingTransport(settings config.Cluster, wraps ...transport.WrapperFunc) (*rotatingTransport, *restclient.Config, error) {
	from, err := originOf(settings)
	if err != nil {
		return nil, nil, err
	}
	rest, err := restConfig(settings, wraps...)
	if err != nil {
		return nil, nil, err
	}
	current, err := restclient.TransportFor(rest)
	if err != nil {
		return nil, nil, fmt.Errorf("kubeconfig %s of cluster %s: %w", settings.Kubeconfig, settings.Name, err)
	}
	return &rotatingTransport{settings: settings, wraps: wraps, origin: from, server: rest.Host, current: current}, rest, nil
}

func (r *rotatingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	return r.latest().RoundTrip(req)
}

// latest returns the transport with the credentials that are in the kubeconfig now.
func (r *rotatingTransport) latest() http.RoundTripper {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, err := originOf(r.settings)
	if err != nil || now == r.origin {
		return r.current
	}
	rest, err := restConfig(r.settings, r.wraps...)
	if err != nil || rest.Host != r.server {
		return r.current // half written, perhaps: looked at again with the next request
	}
	next, err := restclient.TransportFor(rest)
	if err != nil {
		return r.current
	}
	utilnet.CloseIdleConnectionsFor(r.current)
	r.origin, r.current = now, next
	return next
}

// restConfig is the configuration of a client of a cluster.
func restConfig(settings config.Cluster, wraps ...transport.WrapperFunc) (*restclient.Config, error) {
	rest, err := readKubeconfig(settings)
	if err != nil {
		return nil, err
	}
	return withTransport(rest, settings, wraps...)
}

func readKubeconfig(settings config.Cluster) (*restclient.Config, error) {
	rest, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: settings.Kubeconfig},
		&clientcmd.ConfigOverrides{CurrentContext: settings.Context},
	).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s of cluster %s: %w", settings.Kubeconfig, settings.Name, err)
	}
	return rest, nil
}
