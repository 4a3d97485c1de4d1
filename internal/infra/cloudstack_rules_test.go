package infra

import (
	"testing"

	"github.com/stretchr/testify/require"

	"ebb/internal/config"
	"ebb/internal/infra/cloudstacktest"
)

const public = "203.0.113.7"

func ssh(vm string, port int, change ...func(*cloudstacktest.PortForwardingRule)) cloudstacktest.PortForwardingRule {
	rule := cloudstacktest.PortForwardingRule{VM: vm, Public: port, Private: 22, State: "Active", Protocol: "tcp"}
	for _, c := range change {
		c(&rule)
	}
	return rule
}

func TestCloudStackRules(t *testing.T) {
	rules := []cloudstacktest.PortForwardingRule{
		ssh(idW2, 2222),
		ssh(idW1, 2223, func(r *cloudstacktest.PortForwardingRule) { r.State = "Revoke" }),
		ssh(idW1, 2224, func(r *cloudstacktest.PortForwardingRule) { r.State = "Deleting" }),
		ssh(idW1, 2225, func(r *cloudstacktest.PortForwardingRule) { r.State = "Add" }),
		ssh(idW1, 6443, func(r *cloudstacktest.PortForwardingRule) { r.Private = 6443 }),
		ssh(idW1, 2226, func(r *cloudstacktest.PortForwardingRule) { r.Protocol = "udp" }),
		ssh(idW1, 2230),
	}
	want := []config.ForwardingRule{{Node: "VM w2", Port: 2222, State: "Active"}, {Node: "w1", Port: 2230, State: "Active"}}
	for name, m := range map[string]Machine{"by name": byName, "by ID": byIDOf(idW1)} {
		t.Run(name, func(t *testing.T) {
			server, p := cloud(t, nil, vmW1(), vmW2)
			server.Addresses = []cloudstacktest.PublicIPAddress{
				{ID: "ip-0", IP: "203.0.113.70", Rules: []cloudstacktest.PortForwardingRule{ssh(idW1, 9999)}},
				{ID: "ip-1", IP: public, Rules: rules},
			}
			got, err := rulesOf(t, p, ForwardingRuleQuery{PublicAddress: public, Port: 22, Machine: m})
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
}

func rulesOf(t *testing.T, p Provider, q ForwardingRuleQuery) ([]config.ForwardingRule, error) {
	t.Helper()
	forwarder, ok := p.(ForwardingRuleLister)
	require.True(t, ok)
	return forwarder.ForwardingRules(t.Context(), q)
}

// Another VM of the node's name on the same address is not the node's.
func TestCloudStackRulesGoByTheVM(t *testing.T) {
	server, p := cloud(t, nil, vmW1(), vmW1(third, named("w1", "10.0.0.77")))
	server.Addresses = []cloudstacktest.PublicIPAddress{{ID: "ip-1", IP: public, Rules: []cloudstacktest.PortForwardingRule{ssh(idW3, 2222), ssh(idW1, 2223)}}}
	for _, m := range []Machine{byName, byIDOf(idW1)} {
		got, err := rulesOf(t, p, ForwardingRuleQuery{PublicAddress: public, Port: 22, Machine: m})
		require.NoError(t, err)
		require.Equal(t, []config.ForwardingRule{{Node: "VM w1", Port: 2222, State: "Active"}, {Node: "w1", Port: 2223, State: "Active"}}, got)
	}
}

func TestCloudStackRulesOfPortRanges(t *testing.T) {
	server, p := cloud(t, nil, vmW1(), vmW2)
	ranged := func(public, private, length int) cloudstacktest.PortForwardingRule {
		return ssh(idW1, public, func(r *cloudstacktest.PortForwardingRule) {
			r.Private, r.PublicEnd, r.PrivateEnd = private, public+length, private+length
		})
	}
	server.Addresses = []cloudstacktest.PublicIPAddress{{ID: "ip-1", IP: public, Rules: []cloudstacktest.PortForwardingRule{
		ranged(3000, 20, 10), ranged(4000, 23, 10), ranged(5000, 10, 11), ranged(6000, 22, 3), ranged(7000, 12, 10),
	}}}
	got, err := rulesOf(t, p, ForwardingRuleQuery{PublicAddress: public, Port: 22, Machine: byIDOf(idW2)})
	require.NoError(t, err)
	require.Equal(t, []config.ForwardingRule{
		{Node: "VM w1", Port: 3002, State: "Active"}, {Node: "VM w1", Port: 6000, State: "Active"}, {Node: "VM w1", Port: 7010, State: "Active"},
	}, got)
	got, err = rulesOf(t, p, ForwardingRuleQuery{PublicAddress: public, Port: 22, Machine: byName})
	require.NoError(t, err)
	require.Equal(t, []config.ForwardingRule{{Node: "w1", Port: 3002, State: "Active"}}, got, "each leads there")
}

func TestCloudStackRulesOnSeveralPages(t *testing.T) {
	server, p := cloud(t, nil, vmW1(), vmW2)
	address := cloudstacktest.PublicIPAddress{ID: "ip-1", IP: public}
	for i := range pageSize {
		address.Rules = append(address.Rules, ssh(idW2, 1000+i))
	}
	address.Rules = append(address.Rules, ssh(idW1, 2222))
	server.Addresses = []cloudstacktest.PublicIPAddress{address}
	got, err := rulesOf(t, p, ForwardingRuleQuery{PublicAddress: public, Port: 22, Machine: byIDOf(idW1)})
	require.NoError(t, err)
	require.Len(t, got, pageSize+1)
	require.Contains(t, got, config.ForwardingRule{Node: "w1", Port: 2222, State: "Active"})
}

func TestCloudStackRulesOfAnAddress(t *testing.T) {
	for name, c := range map[string]struct {
		address   string
		change    func(*config.Infrastructure)
		addresses []cloudstacktest.PublicIPAddress
		err       string
	}{
		"without rules": {public, nil, []cloudstacktest.PublicIPAddress{{ID: "ip-1", IP: public}}, ""},
		"IPv6":          {"2001:db8::7", nil, []cloudstacktest.PublicIPAddress{{ID: "ip-1", IP: "2001:db8::7"}}, ""},
		"in the project": {public, func(cfg *config.Infrastructure) { cfg.Project = idP1 },
			[]cloudstacktest.PublicIPAddress{{ID: "ip-1", IP: public, Project: idP1}}, ""},
		"in another project": {public, nil, []cloudstacktest.PublicIPAddress{{ID: "ip-1", IP: public, Project: idP1}},
			"CloudStack does not show this address in the account of these keys: correct addressing.publicAddress or infrastructure.project, or list addressing.rules"},
		"unknown": {public, func(cfg *config.Infrastructure) { cfg.Project = idP1 }, nil,
			"CloudStack does not show this address in project " + idP1 + ": correct addressing.publicAddress or infrastructure.project, or list addressing.rules"},
		"in two zones": {public, nil, []cloudstacktest.PublicIPAddress{{ID: "ip-1", IP: public, Zone: idZ1}, {ID: "ip-2", IP: public, Zone: "z-2"}},
			"CloudStack shows this address 2 times in the account of these keys: set infrastructure.zone"},
		"in the zone": {public, func(cfg *config.Infrastructure) { cfg.Zone = idZ1 },
			[]cloudstacktest.PublicIPAddress{{ID: "ip-1", IP: public, Zone: idZ1}, {ID: "ip-2", IP: public, Zone: "z-2"}}, ""},
		"a name": {"nodes.example.com", nil, nil,
			"addressing.publicAddress must be an IP address for its rules to be found: write one, or list addressing.rules"},
	} {
		t.Run(name, func(t *testing.T) {
			server, p := cloud(t, c.change, vmW1(), vmW2)
			server.Addresses = c.addresses
			got, err := rulesOf(t, p, ForwardingRuleQuery{PublicAddress: c.address, Port: 22, Machine: byIDOf(idW1)})
			if c.err != "" {
				require.EqualError(t, err, "port-forwarding rules of "+c.address+": "+c.err)
				require.True(t, Permanent(err))
				return
			}
			require.NoError(t, err)
			require.Empty(t, got)
		})
	}
}

func TestCloudStackRulesFail(t *testing.T) {
	server, p := cloud(t, nil, vmW1(), vmW2)
	server.Addresses = []cloudstacktest.PublicIPAddress{{ID: "ip-1", IP: public}}
	server.FailNext("listPortForwardingRules", 530, "out of order")
	_, err := rulesOf(t, p, ForwardingRuleQuery{PublicAddress: public, Port: 22, Machine: byName})
	require.EqualError(t, err, "port-forwarding rules of "+public+": CloudStack listPortForwardingRules: error 530: out of order")
	require.False(t, Permanent(err))

	other := byName
	other.Addresses = []string{"10.9.9.9"}
	_, err = rulesOf(t, p, ForwardingRuleQuery{PublicAddress: public, Port: 22, Machine: other})
	require.ErrorContains(t, err, "it is another machine")
	require.True(t, Permanent(err))
}
