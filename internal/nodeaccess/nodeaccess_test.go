package nodeaccess

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"k8s.io/client-go/kubernetes/fake"

	"ebb/internal/cluster"
	"ebb/internal/config"
	"ebb/internal/infra"
	"ebb/internal/infra/cloudstacktest"
	"ebb/internal/nodessh"
	"ebb/internal/policy"
)

const (
	vmOne    = "11111111-1111-4111-8111-111111111111"
	vmTwo    = "22222222-2222-4222-8222-222222222222"
	publicIP = "203.0.113.7"
)

// w1 is known to CloudStack by its name and address, w2 by its provider ID.
var (
	nodeOne = policy.Node{Name: "w1", Addresses: []string{"10.0.0.4"}, Index: 3}
	nodeTwo = policy.Node{Name: "w2", Addresses: []string{"10.0.0.5"}, Index: 0, ProviderID: "external-cloudstack:///" + vmTwo}
)

// bed is a cluster whose machines are CloudStack's, and what was logged.
type bed struct {
	cluster *cluster.Cluster
	log     *zap.Logger
	logs    *observer.ObservedLogs
}

func (b bed) resolve(t *testing.T, n policy.Node) (nodessh.Target, error) {
	t.Helper()
	return Resolve(t.Context(), b.cluster, n, b.log)
}

// onCloudStack is a cluster whose machines are CloudStack's, with what a test
// changes in its settings.
func onCloudStack(t *testing.T, change func(*config.Cluster)) (bed, *cloudstacktest.Server) {
	t.Helper()
	server := cloudstacktest.Start(false,
		cloudstacktest.VM{ID: vmOne, Name: "w1", State: "Running", Addresses: []string{"10.0.0.4"}, ISO: "iso-1"},
		cloudstacktest.VM{ID: vmTwo, Name: "two", State: "Running", Addresses: []string{"10.0.0.5"}})
	t.Cleanup(server.Close)
	server.Addresses = []cloudstacktest.PublicIPAddress{{ID: "ip-1", IP: publicIP}}
	keys := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(keys, []byte("apiKey="+cloudstacktest.APIKey+"\nsecretKey="+cloudstacktest.SecretKey), 0o600))
	c := config.Cluster{
		Name: "prod", Kubeconfig: "x",
		Addressing:     config.Addressing{Mode: "forwarded", PublicAddress: publicIP, BasePort: 2222},
		Infrastructure: config.Infrastructure{Provider: "cloudstack", Endpoint: server.Endpoint(), CredentialsFile: keys},
	}
	change(&c)
	settings := func() (config.Cluster, error) { return c.WithDefaults(), nil }
	core, logs := observer.New(zap.WarnLevel)
	return bed{cluster: cluster.New("prod", fake.NewClientset(), settings, zap.NewNop()), log: zap.New(core), logs: logs}, server
}

func TestResolveThroughTheRulesOfTheInfrastructure(t *testing.T) {
	b, server := onCloudStack(t, func(*config.Cluster) {})
	server.Addresses[0].Rules = []cloudstacktest.PortForwardingRule{
		{VM: vmTwo, Public: 2225, Private: 22, Protocol: "tcp", State: "Active"}, // where the fallback of w1 would lead
		{VM: vmOne, Public: 2222, Private: 22, Protocol: "tcp", State: "Revoke"}, // the first by index
		{VM: vmOne, Public: 2230, Private: 22, Protocol: "tcp", State: "Active"},
	}
	for _, c := range []struct {
		node policy.Node
		want string
	}{{nodeOne, publicIP + ":2230"}, {nodeTwo, publicIP + ":2225"}} {
		target, err := b.resolve(t, c.node)
		require.NoError(t, err)
		require.Equal(t, c.want, target.Address, c.node.Name)
	}
	require.Zero(t, b.logs.Len())

	// Each time anew: the rules have changed meanwhile.
	server.Update(func(s *cloudstacktest.Server) { s.Addresses[0].Rules[2].Public = 2231 })
	target, err := b.resolve(t, nodeOne)
	require.NoError(t, err)
	require.Equal(t, publicIP+":2231", target.Address)

	// Never through a port that is known to lead to another machine.
	server.Update(func(s *cloudstacktest.Server) { s.Addresses[0].Rules = s.Addresses[0].Rules[:2] })
	_, err = b.resolve(t, nodeOne)
	require.ErrorContains(t, err, "the fallback port 2225 is forwarded to VM two")
}

func TestResolveAsksForTheOwnSSHPort(t *testing.T) {
	b, server := onCloudStack(t, func(c *config.Cluster) { c.SSH.Port = 2022 })
	server.Addresses[0].Rules = []cloudstacktest.PortForwardingRule{
		{VM: vmOne, Public: 2230, Private: 22, Protocol: "tcp", State: "Active"},
		{VM: vmOne, Public: 2231, Private: 2022, Protocol: "tcp", State: "Active"},
	}
	target, err := b.resolve(t, nodeOne)
	require.NoError(t, err)
	require.Equal(t, publicIP+":2231", target.Address)
}

func TestResolveWithoutARule(t *testing.T) {
	b, _ := onCloudStack(t, func(*config.Cluster) {})
	target, err := b.resolve(t, nodeOne)
	require.NoError(t, err)
	require.Equal(t, publicIP+":2225", target.Address)
	require.Equal(t, "node w1 has no active forwarding rule; trying port 2225 (basePort 2222 + index 3)", b.logs.All()[0].Message)

	b, _ = onCloudStack(t, func(c *config.Cluster) { c.Addressing.BasePort = 0 })
	_, err = b.resolve(t, nodeOne)
	require.ErrorContains(t, err, "node w1 has no active forwarding rule and addressing.basePort gives no port")
	require.True(t, nodessh.Permanent(err))
}

func TestResolveDoesNotAskWithoutNeed(t *testing.T) {
	for name, change := range map[string]func(*config.Cluster){
		"rules in the file": func(c *config.Cluster) { c.Addressing.Rules = []config.ForwardingRule{{Node: "w1", Port: 2240}} },
		"shared network":    func(c *config.Cluster) { c.Addressing.Mode = "node" },
		"another provider": func(c *config.Cluster) {
			c.Infrastructure = config.Infrastructure{Provider: "exec", Command: []string{"/no/program"}}
		},
	} {
		b, server := onCloudStack(t, change)
		target, err := b.resolve(t, nodeOne)
		require.NoError(t, err, name)
		require.Equal(t, map[string]string{
			"rules in the file": publicIP + ":2240", "shared network": "10.0.0.4:22", "another provider": publicIP + ":2225",
		}[name], target.Address)
		require.Empty(t, server.Calls("listPortForwardingRules"))
	}
}

func TestResolveWhenTheInfrastructureFails(t *testing.T) {
	b, server := onCloudStack(t, func(*config.Cluster) {})
	server.FailNext("listPortForwardingRules", 530, "out of order")
	_, err := b.resolve(t, nodeOne)
	require.ErrorContains(t, err, "find the way to node w1: port-forwarding rules of "+publicIP+": CloudStack listPortForwardingRules: error 530: out of order")
	require.False(t, infra.Permanent(err))
	require.False(t, nodessh.Permanent(err), "it is tried again")

	_, err = b.resolve(t, policy.Node{Name: "w1", Addresses: []string{"10.0.0.99"}})
	require.ErrorContains(t, err, "it is another machine")
	require.True(t, infra.Permanent(err))

	b, _ = onCloudStack(t, func(c *config.Cluster) { c.Infrastructure.CredentialsFile = "/no/keys" })
	_, err = b.resolve(t, nodeOne)
	var faulty *cluster.ConfigError
	require.ErrorAs(t, err, &faulty)
}
