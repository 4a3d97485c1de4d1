package nodessh

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/config"
)

func TestResolve(t *testing.T) {
	forwarded := func(basePort int, rules ...config.ForwardingRule) config.Addressing {
		return config.Addressing{Mode: config.AddressForwarded, PublicAddress: "203.0.113.9", BasePort: basePort, Rules: rules}
	}
	cases := []struct {
		name       string
		addressing config.Addressing
		port       int
		node       NodeAddress
		want       string
		warning    string
		err        string
	}{
		{name: "node", node: NodeAddress{Name: "w1", InternalIPs: []string{"10.0.0.5", "fd00::5"}}, want: "10.0.0.5:22"},
		{name: "node, other port", port: 2222, node: NodeAddress{Name: "w1", InternalIPs: []string{"10.0.0.5"}}, want: "10.0.0.5:2222"},
		{name: "node, IPv6", node: NodeAddress{Name: "w1", InternalIPs: []string{"fd00::5"}}, want: "[fd00::5]:22"},
		{name: "node, dual-stack with IPv6 first", node: NodeAddress{Name: "w1", InternalIPs: []string{"fd00::5", "10.0.0.5"}}, want: "[fd00::5]:22"},
		{
			name: "shared network: no rules, and the public address is not the node's", want: "10.0.0.5:22", node: NodeAddress{Name: "w1", InternalIPs: []string{"10.0.0.5"}, Index: 3},
			addressing: config.Addressing{Mode: config.AddressNode, PublicAddress: "203.0.113.9", BasePort: 2222},
		},
		{
			name: "shared network: a rule that is left over is not used", want: "10.0.0.5:22", node: NodeAddress{Name: "w1", InternalIPs: []string{"10.0.0.5"}},
			addressing: config.Addressing{Mode: config.AddressNode, PublicAddress: "203.0.113.9", Rules: []config.ForwardingRule{{Node: "w1", Port: 2222}}},
		},
		{name: "node without address", node: NodeAddress{Name: "w1"}, err: "no InternalIP"},
		{name: "unknown mode", addressing: config.Addressing{Mode: "pigeon"}, node: NodeAddress{Name: "w1"}, err: "pigeon"},
		{
			name: "own active rule, not the index", node: NodeAddress{Name: "w2", Index: 0}, want: "203.0.113.9:2230",
			addressing: forwarded(2222, config.ForwardingRule{Node: "w1", Port: 2222}, config.ForwardingRule{Node: "w2", Port: 2230, State: "Active"}),
		},
		{
			name: "revoked rule is ignored", node: NodeAddress{Name: "w1"}, want: "203.0.113.9:2231",
			addressing: forwarded(2222, config.ForwardingRule{Node: "w1", Port: 2222, State: "Revoke"}, config.ForwardingRule{Node: "w1", Port: 2231, State: "Active"}),
		},
		{
			name: "forwarded: the port of the node itself does not matter", port: 2022, node: NodeAddress{Name: "w1"}, want: "203.0.113.9:2222",
			addressing: forwarded(0, config.ForwardingRule{Node: "w1", Port: 2222}),
		},
		{
			name: "only a revoked rule is no rule", node: NodeAddress{Name: "w1", Index: 1}, want: "203.0.113.9:2223",
			warning:    "node w1 has no active forwarding rule; trying port 2223 (basePort 2222 + index 1)",
			addressing: forwarded(2222, config.ForwardingRule{Node: "w1", Port: 2240, State: "Revoke"}),
		},
		{
			name: "only a revoked rule, and no base port", node: NodeAddress{Name: "w1"}, err: "node w1 has no active forwarding rule",
			addressing: forwarded(0, config.ForwardingRule{Node: "w1", Port: 2240, State: "Deleting"}),
		},
		{
			name: "the port of another's revoked rule is free", node: NodeAddress{Name: "w3"}, want: "203.0.113.9:2222",
			warning:    "node w3 has no active forwarding rule; trying port 2222 (basePort 2222 + index 0)",
			addressing: forwarded(2222, config.ForwardingRule{Node: "w1", Port: 2222, State: "Revoke"}),
		},
		{name: "no rule, and no port that high", node: NodeAddress{Name: "w3", Index: 36}, addressing: forwarded(65500), err: "addressing.basePort gives no port"},
		{
			name: "no rule", node: NodeAddress{Name: "w3", Index: 3}, want: "203.0.113.9:2225",
			warning: "node w3 has no active forwarding rule; trying port 2225 (basePort 2222 + index 3)", addressing: forwarded(2222),
		},
		{
			name: "no rule, and the fallback leads to another node", node: NodeAddress{Name: "w3", Index: 0}, err: "forwarded to w1",
			addressing: forwarded(2222, config.ForwardingRule{Node: "w1", Port: 2222}),
		},
		{name: "no rule and no base port", node: NodeAddress{Name: "w3"}, addressing: forwarded(0), err: "addressing.basePort"},
		{
			name: "two active rules", node: NodeAddress{Name: "w1"}, err: "two active forwarding rules",
			addressing: forwarded(0, config.ForwardingRule{Node: "w1", Port: 1}, config.ForwardingRule{Node: "w1", Port: 2}),
		},
		{
			name: "IPv6 public address", node: NodeAddress{Name: "w1"}, want: "[2001:db8::9]:2222",
			addressing: config.Addressing{Mode: config.AddressForwarded, PublicAddress: "2001:db8::9", Rules: []config.ForwardingRule{{Node: "w1", Port: 2222}}},
		},
		{
			name: "IPv6 public address in brackets", node: NodeAddress{Name: "w1"}, want: "[2001:db8::9]:2222",
			addressing: config.Addressing{Mode: config.AddressForwarded, PublicAddress: "[2001:db8::9]", Rules: []config.ForwardingRule{{Node: "w1", Port: 2222}}},
		},
		{
			name: "IPv6 public address, no rule", node: NodeAddress{Name: "w1", InternalIPs: []string{"10.0.0.5", "fd00::5"}, Index: 2}, want: "[2001:db8::9]:2224",
			warning:    "node w1 has no active forwarding rule; trying port 2224 (basePort 2222 + index 2)",
			addressing: config.Addressing{Mode: config.AddressForwarded, PublicAddress: "2001:db8::9", BasePort: 2222},
		},
		{name: "no public address", node: NodeAddress{Name: "w1"}, err: "publicAddress", addressing: config.Addressing{Mode: config.AddressForwarded}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			target, warning, err := Resolve(config.Cluster{Name: "prod", SSH: config.SSH{Port: tc.port}, Addressing: tc.addressing}, tc.node)
			if tc.err != "" {
				require.ErrorContains(t, err, tc.err)
				require.Empty(t, target.Address)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.want, target.Address)
			require.Equal(t, tc.warning, warning)
			require.Equal(t, tc.node.Name, target.Node)
		})
	}
}

func TestResolveCarriesSettings(t *testing.T) {
	target, _, err := Resolve(config.Cluster{SSH: config.SSH{
		User: "cloud", IdentityFile: "/id", CertificateFile: "/cert", PassphraseFile: "/pass", Agent: true, KnownHosts: "/known",
		AcceptNew: true, Sudo: true, Jump: "bastion", ConnectTimeout: config.Duration(3 * time.Second), KeepAlive: config.Duration(2 * time.Second),
	}}, NodeAddress{Name: "w1", InternalIPs: []string{"10.0.0.5"}})
	require.NoError(t, err)
	require.Equal(t, Target{
		Node: "w1", Address: "10.0.0.5:22", User: "cloud", IdentityFile: "/id", CertificateFile: "/cert", PassphraseFile: "/pass", Agent: true,
		KnownHosts: "/known", AcceptNew: true, Sudo: true, Jump: "bastion", ConnectTimeout: 3 * time.Second, KeepAlive: 2 * time.Second,
	}, target)
}
