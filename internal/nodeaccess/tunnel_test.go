package nodeaccess

import (
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"k8s.io/client-go/kubernetes/fake"

	"ebb/internal/cluster"
	"ebb/internal/config"
	"ebb/internal/nodessh"
	"ebb/internal/policy"
	"ebb/internal/tunnel/tunneltest"
)

// A node is dialled at its own address, through the gateway. What that does not allow is not
// tried again; a gateway that is away is.
func TestNodesThroughTheTunnel(t *testing.T) {
	authority, err := tunneltest.NewAuthority(t.TempDir())
	require.NoError(t, err)
	certificate, key, err := authority.Issue("worker")
	require.NoError(t, err)
	proxy, err := authority.NewProxy(func(_, address string) bool { return strings.HasPrefix(address, "127.0.0.1:") })
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	settings := config.Cluster{
		Name: "prod", Kubeconfig: "x", SSH: config.SSH{Port: l.Addr().(*net.TCPAddr).Port}, Addressing: config.Addressing{Mode: config.AddressTunnel},
		Tunnel: config.ClusterTunnel{Address: proxy.Address(), CAFile: authority.CAFile(), CertificateFile: certificate, KeyFile: key},
	}
	prod := cluster.New("prod", fake.NewClientset(), func() (config.Cluster, error) { return settings.WithDefaults(), nil }, zap.NewNop())

	target, err := Resolve(t.Context(), prod, policy.Node{Name: "w1", Addresses: []string{"127.0.0.1"}}, zap.NewNop())
	require.NoError(t, err)
	require.Equal(t, l.Addr().String(), target.Address)
	c, err := target.Dial(t.Context(), "tcp", target.Address)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.Equal(t, []string{"prod " + target.Address}, proxy.Dialed())

	err = dialTunnelled(t, prod, "127.0.0.2")
	require.ErrorContains(t, err, "is not allowed")
	require.True(t, nodessh.Permanent(err), err)
	proxy.Close()
	err = dialTunnelled(t, prod, "127.0.0.1")
	require.ErrorContains(t, err, "connection refused")
	require.False(t, nodessh.Permanent(err), err)
}

func dialTunnelled(t *testing.T, c *cluster.Cluster, address string) error {
	t.Helper()
	target, err := Resolve(t.Context(), c, policy.Node{Name: "w1", Addresses: []string{address}}, zap.NewNop())
	require.NoError(t, err)
	_, err = target.Dial(t.Context(), "tcp", target.Address)
	return &nodessh.TransportError{Node: "w1", Op: "connect", Err: err} // as nodessh.Dial wraps it
}
