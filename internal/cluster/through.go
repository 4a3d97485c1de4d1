package cluster

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"

	"k8s.io/client-go/kubernetes"
)

// Through returns a client of the API server that dial connects to, whatever address the
// kubeconfig has. Credentials, authorities and the name in the certificate are the
// kubeconfig's. The client repeats nothing.
func (c *Cluster) Through(dial func(context.Context) (net.Conn, error)) (kubernetes.Interface, error) {
	settings, err := c.Settings()
	if err != nil {
		return nil, err
	}
	rest, err := readKubeconfig(settings)
	if err != nil {
		return nil, err
	}
	rest.UserAgent, rest.QPS = userAgent, -1
	rest.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }
	rest.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil } // it leads elsewhere; and such a transport is not cached
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return nil, fmt.Errorf("client of cluster %s: %w", settings.Name, err)
	}
	return client, nil
}
