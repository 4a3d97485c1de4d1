package activities

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"k8s.io/client-go/kubernetes/fake"

	"ebb/internal/cluster"
	"ebb/internal/config"
	"ebb/internal/infra"
	"ebb/internal/infra/cloudstacktest"
	"ebb/internal/plan"
)

const (
	vmOne    = "11111111-1111-4111-8111-111111111111"
	vmTwo    = "22222222-2222-4222-8222-222222222222"
	publicIP = "203.0.113.7"
)

// w1 is known to CloudStack by its name and address, w2 by its provider ID.
var (
	nodeOne = plan.Node{Name: "w1", Addresses: []string{"10.0.0.4"}, Index: 3}
	nodeTwo = plan.Node{Name: "w2", Addresses: []string{"10.0.0.5"}, Index: 0, ProviderID: "external-cloudstack:///" + vmTwo}
)

// onCloudStack is a cluster whose machines are CloudStack's, with what a test
// changes in its settings, and what was logged.
func onCloudStack(t *testing.T, change func(*config.Cluster)) (*Activities, *cloudstacktest.Server, *observer.ObservedLogs) {
	t.Helper()
	server := cloudstacktest.Start(false,
		cloudstacktest.VM{ID: vmOne, Name: "w1", State: "Running", Addresses: []string{"10.0.0.4"}, ISO: "iso-1"},
		cloudstacktest.VM{ID: vmTwo, Name: "two", State: "Running", Addresses: []string{"10.0.0.5"}})
	t.Cleanup(server.Close)
	server.Addresses = []cloudstacktest.Address{{ID: "ip-1", IP: publicIP}}
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
	return &Activities{Clusters: one{cluster.New("prod", fake.NewClientset(), settings, zap.NewNop())}, Log: zap.New(core)}, server, logs
}

func TestReachThroughTheRulesOfTheInfrastructure(t *testing.T) {
	a, server, logs := onCloudStack(t, func(*config.Cluster) {})
	server.Addresses[0].Rules = []cloudstacktest.Rule{
		{VM: vmTwo, Public: 2225, Private: 22, Protocol: "tcp", State: "Active"}, // where the fallback of w1 would lead
		{VM: vmOne, Public: 2222, Private: 22, Protocol: "tcp", State: "Revoke"}, // the first by index
		{VM: vmOne, Public: 2230, Private: 22, Protocol: "tcp", State: "Active"},
	}
	for _, c := range []struct {
		node plan.Node
		want string
	}{{nodeOne, publicIP + ":2230"}, {nodeTwo, publicIP + ":2225"}} {
		target, _, err := a.reach(t.Context(), "prod", c.node)
		require.NoError(t, err)
		require.Equal(t, c.want, target.Address, c.node.Name)
	}
	require.Zero(t, logs.Len())

	// Each time anew: the rules have changed meanwhile.
	server.Change(func(s *cloudstacktest.Server) { s.Addresses[0].Rules[2].Public = 2231 })
	target, _, err := a.reach(t.Context(), "prod", nodeOne)
	require.NoError(t, err)
	require.Equal(t, publicIP+":2231", target.Address)

	// Never through a port that is known to lead to another machine.
	server.Change(func(s *cloudstacktest.Server) { s.Addresses[0].Rules = s.Addresses[0].Rules[:2] })
	_, _, err = a.reach(t.Context(), "prod", nodeOne)
	require.ErrorContains(t, err, "the fallback port 2225 is forwarded to VM two")
}

func TestReachAsksForTheOwnSSHPort(t *testing.T) {
	a, server, _ := onCloudStack(t, func(c *config.Cluster) { c.SSH.Port = 2022 })
	server.Addresses[0].Rules = []cloudstacktest.Rule{
		{VM: vmOne, Public: 2230, Private: 22, Protocol: "tcp", State: "Active"},
		{VM: vmOne, Public: 2231, Private: 2022, Protocol: "tcp", State: "Active"},
	}
	target, _, err := a.reach(t.Context(), "prod", nodeOne)
	require.NoError(t, err)
	require.Equal(t, publicIP+":2231", target.Address)
}

func TestReachWithoutARule(t *testing.T) {
	a, _, logs := onCloudStack(t, func(*config.Cluster) {})
	target, _, err := a.reach(t.Context(), "prod", nodeOne)
	require.NoError(t, err)
	require.Equal(t, publicIP+":2225", target.Address)
	require.Equal(t, "node w1 has no active forwarding rule; trying port 2225 (basePort 2222 + index 3)", logs.All()[0].Message)

	a, _, _ = onCloudStack(t, func(c *config.Cluster) { c.Addressing.BasePort = 0 })
	_, _, err = a.reach(t.Context(), "prod", nodeOne)
	require.ErrorContains(t, err, "node w1 has no active forwarding rule and addressing.basePort gives no port")
	requireKind(t, TypeNodeAccess, err)
}

func TestReachDoesNotAskWithoutNeed(t *testing.T) {
	for name, change := range map[string]func(*config.Cluster){
		"rules in the file": func(c *config.Cluster) { c.Addressing.Rules = []config.ForwardingRule{{Node: "w1", Port: 2240}} },
		"shared network":    func(c *config.Cluster) { c.Addressing.Mode = "node" },
		"another provider": func(c *config.Cluster) {
			c.Infrastructure = config.Infrastructure{Provider: "exec", Command: []string{"/no/program"}}
		},
	} {
		a, server, _ := onCloudStack(t, change)
		target, _, err := a.reach(t.Context(), "prod", nodeOne)
		require.NoError(t, err, name)
		require.Equal(t, map[string]string{
			"rules in the file": publicIP + ":2240", "shared network": "10.0.0.4:22", "another provider": publicIP + ":2225",
		}[name], target.Address)
		require.Empty(t, server.Calls("listPortForwardingRules"))
	}
}

func TestReachWhenTheInfrastructureFails(t *testing.T) {
	a, server, _ := onCloudStack(t, func(*config.Cluster) {})
	server.Fail("listPortForwardingRules", 530, "out of order")
	_, _, err := a.reach(t.Context(), "prod", nodeOne)
	require.ErrorContains(t, err, "find the way to node w1: port-forwarding rules of "+publicIP+": CloudStack listPortForwardingRules: error 530: out of order")
	require.False(t, infra.Permanent(err))
	require.Equal(t, err, classify(err), "it is tried again")

	_, _, err = a.reach(t.Context(), "prod", plan.Node{Name: "w1", Addresses: []string{"10.0.0.99"}})
	require.ErrorContains(t, err, "it is another machine")
	require.True(t, infra.Permanent(err))

	a, _, _ = onCloudStack(t, func(c *config.Cluster) { c.Infrastructure.CredentialsFile = "/no/keys" })
	_, _, err = a.reach(t.Context(), "prod", nodeOne)
	requireKind(t, TypeConfig, err)
}

func requireKind(t *testing.T, kind string, err error) {
	t.Helper()
	var app *temporal.ApplicationError
	require.ErrorAs(t, classify(err), &app)
	require.Equal(t, kind, app.Type())
	require.True(t, app.NonRetryable())
}

func TestDetachISO(t *testing.T) {
	a, server, _ := onCloudStack(t, func(*config.Cluster) {})
	for range 2 { // the answer to the first may be lost
		got, err := a.DetachISO(t.Context(), DetachISOInput{Cluster: "prod", Node: nodeOne})
		require.NoError(t, err)
		require.True(t, got.Detached)
	}
	require.Empty(t, server.VM(vmOne).ISO)
	require.Len(t, server.Calls("detachIso"), 1)

	got, err := a.DetachISO(t.Context(), DetachISOInput{Cluster: "prod", Node: nodeTwo})
	require.NoError(t, err, "it has none")
	require.True(t, got.Detached)
	require.Len(t, server.Calls("detachIso"), 1)
}

func TestDetachISOFails(t *testing.T) {
	a, server, _ := onCloudStack(t, func(*config.Cluster) {})
	server.JobError = "the host is away"
	got, err := a.DetachISO(t.Context(), DetachISOInput{Cluster: "prod", Node: nodeOne})
	require.EqualError(t, err, "detach the ISO of the machine of node w1: CloudStack detachIso: error 530: the host is away")
	require.False(t, got.Detached)
	require.False(t, infra.Permanent(err))
}

func TestDetachISOWithoutDrives(t *testing.T) {
	for _, provider := range []config.Infrastructure{{Provider: "none"}, {Provider: "exec", Command: []string{"/no/program"}}} {
		a, _, _ := onCloudStack(t, func(c *config.Cluster) { c.Infrastructure = provider })
		got, err := a.DetachISO(t.Context(), DetachISOInput{Cluster: "prod", Node: nodeOne})
		require.NoError(t, err)
		require.False(t, got.Detached)
	}
	a, _, _ := onCloudStack(t, func(*config.Cluster) {})
	_, err := a.DetachISO(t.Context(), DetachISOInput{Cluster: "other", Node: nodeOne})
	requireKind(t, TypeConfig, err)
}
