package endpoints

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"ebb/internal/api/wire"
)

// editKubeconfig changes the kubeconfig of the gateway.
func (g *gateway) editKubeconfig(change func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo)) {
	g.t.Helper()
	path := filepath.Join(g.dir, "kubeconfig")
	c, err := clientcmd.LoadFromFile(path)
	require.NoError(g.t, err)
	current := c.Contexts[c.CurrentContext]
	change(c.Clusters[current.Cluster], c.AuthInfos[current.AuthInfo])
	require.NoError(g.t, clientcmd.WriteToFile(*c, path))
}

// readiness returns what /readyz says to a caller, "" = without a token, of the clusters.
func (g *gateway) readiness(token string) []wire.FollowedCluster {
	g.t.Helper()
	r, err := http.NewRequestWithContext(g.t.Context(), http.MethodGet, "https://"+g.apiAddress+"/readyz", nil)
	require.NoError(g.t, err)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	pool := x509.NewCertPool()
	pool.AddCert(g.ca.cert)
	browser := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}}
	defer browser.CloseIdleConnections()
	answer, err := browser.Do(r)
	require.NoError(g.t, err)
	defer func() { require.NoError(g.t, answer.Body.Close()) }()
	require.Equal(g.t, http.StatusOK, answer.StatusCode, "it serves what it knows")
	var now wire.Readiness
	require.NoError(g.t, json.NewDecoder(answer.Body).Decode(&now))
	return now.Endpoints
}

// waitForReadiness waits until what is said of prod is as wanted.
func (g *gateway) waitForReadiness(want func(wire.FollowedCluster) bool) {
	g.t.Helper()
	var last []wire.FollowedCluster
	require.Eventually(g.t, func() bool {
		last = g.readiness(g.token)
		return len(last) == 1 && last[0].Cluster == "prod" && want(last[0])
	}, waitTimeout, 100*time.Millisecond, "what is not so of prod")
}

// failing returns which watches of a cluster fail with a text in their error.
func failing(c wire.FollowedCluster, text string) (resources []string) {
	for _, w := range c.Failing {
		if strings.Contains(w.Error, text) {
			resources = append(resources, w.Resource)
		}
	}
	slices.Sort(resources)
	return resources
}

var watched = []string{"endpointslices", "nodes", "services"}

// A cluster that is followed is followed on when its API server is reached elsewhere, or by
// another token: clients keep what they have meanwhile, and are told what has changed. What
// fails is said for each cluster.
func TestChangedKubeconfigIsTakenUp(t *testing.T) {
	const name = "prod/default/moved:80"
	createServiceWithEndpoint(t, "moved", "10.9.0.1")
	g := newGateway(t)
	rest, err := clientcmd.BuildConfigFromFlags("", shared.Kubeconfig())
	require.NoError(t, err)
	api, err := url.Parse(rest.Host)
	require.NoError(t, err)
	before, after := startBalancer(t, api.Host), startBalancer(t, api.Host)
	moveTo := func(b *balancer) {
		g.editKubeconfig(func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.Server = "https://" + b.address() })
	}
	moveTo(before)
	s := openDelta(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+g.token), t, g.xdsAddress, g.ca.clientCredentials(g.ca, ""))
	s.request(resource.EndpointType, []string{name}, response{})
	s.waitForEndpoints(name, map[string]string{"10.9.0.1": healthy})
	g.waitForReadiness(func(c wire.FollowedCluster) bool {
		return c.InStep && c.LastEventSeconds != nil && *c.LastEventSeconds < 90
	})
	require.Empty(t, g.readiness(""), "strangers learn nothing of clusters")
	require.Contains(t, g.metrics(), `ebb_endpoints_cluster_in_step{cluster="prod"} 1`)

	before.stop()
	g.waitForReadiness(func(c wire.FollowedCluster) bool { return !c.InStep && slices.Equal(failing(c, "refused"), watched) })
	require.Contains(t, g.metrics(), `ebb_endpoints_cluster_in_step{cluster="prod"} 0`)
	require.Contains(t, g.metrics(), `ebb_endpoints_watch_failing{cluster="prod",resource="nodes"} 1`)
	require.Contains(t, g.metrics(), `ebb_endpoints_watch_last_event_timestamp_seconds{cluster="prod",resource="nodes"} `)
	moveTo(after)
	setEndpointAddress(t, "moved", "10.9.0.2")
	u := s.nextResponse()
	require.Empty(t, u.removed)
	require.Equal(t, map[string]string{"10.9.0.2": healthy}, s.endpoints(name), "the first that comes is the change: nothing was taken meanwhile")
	g.waitForReadiness(func(c wire.FollowedCluster) bool { return c.InStep })

	var good string
	g.editKubeconfig(func(_ *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) { good, user.Token = user.Token, "expired" })
	g.waitForReadiness(func(c wire.FollowedCluster) bool {
		return !c.InStep && slices.Equal(failing(c, "Unauthorized"), watched)
	})
	setEndpointAddress(t, "moved", "10.9.0.3")
	s.waitForEndpoints(name, map[string]string{"10.9.0.3": healthy})
	g.editKubeconfig(func(_ *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) { user.Token = good })
	g.waitForReadiness(func(c wire.FollowedCluster) bool { return c.InStep })
	setEndpointAddress(t, "moved", "10.9.0.4")
	s.waitForEndpoints(name, map[string]string{"10.9.0.4": healthy})
}
