package infra

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/cloudstack-go/v2/cloudstack"

	"ebb/internal/config"
)

// ForwardingRules implements Forwarder.
func (c *cloudStack) ForwardingRules(ctx context.Context, q ForwardingRuleQuery) ([]config.ForwardingRule, error) {
	s, closeSession := c.newSession(ctx)
	defer closeSession()
	rules, err := s.listForwardingRules(q)
	if err != nil {
		return nil, fmt.Errorf("port-forwarding rules of %s: %w", q.PublicAddress, err)
	}
	return rules, nil
}

func (s *session) listForwardingRules(q ForwardingRuleQuery) ([]config.ForwardingRule, error) {
	in, err := s.resolveScope()
	if err != nil {
		return nil, err
	}
	address, err := s.publicIPAddressID(q.PublicAddress, in)
	if err != nil {
		return nil, err
	}
	id := vmIDFromProviderID(q.Machine.ProviderID)
	if id == "" {
		vm, err := s.findVM(q.Machine)
		if err != nil {
			return nil, err
		}
		if vm != nil {
			id = vm.Id
		}
	}
	params := s.api.Firewall.NewListPortForwardingRulesParams()
	params.SetIpaddressid(address)
	params.SetListall(true)
	if in.project != "" {
		params.SetProjectid(in.project)
	}
	listed, err := listPages(s, "listPortForwardingRules", params, func() ([]*cloudstack.PortForwardingRule, int, error) {
		got, err := s.api.Firewall.ListPortForwardingRules(params)
		if err != nil {
			return nil, 0, err
		}
		return got.PortForwardingRules, got.Count, nil
	})
	if err != nil {
		return nil, err
	}
	return sshRules(q, id, listed)
}

// publicIPAddressID returns CloudStack's ID of a public IP address. None or several in
// the scope is a permanent error.
func (s *session) publicIPAddressID(address string, in scope) (string, error) {
	if _, err := netip.ParseAddr(address); err != nil {
		return "", permanentf("addressing.publicAddress must be an IP address for its rules to be found: write one, or list addressing.rules")
	}
	params := s.api.Address.NewListPublicIpAddressesParams()
	params.SetIpaddress(address)
	params.SetListall(true)
	in.applyTo(params)
	listed, err := listPages(s, "listPublicIpAddresses", params, func() ([]*cloudstack.PublicIpAddress, int, error) {
		got, err := s.api.Address.ListPublicIpAddresses(params)
		if err != nil {
			return nil, 0, err
		}
		return got.PublicIpAddresses, got.Count, nil
	})
	if err != nil {
		return "", err
	}
	var found []string
	for _, one := range listed {
		if equalAddresses(one.Ipaddress, address) {
			found = append(found, one.Id)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "", permanentf("CloudStack does not show this address in %s: correct addressing.publicAddress or infrastructure.project, or list addressing.rules", s.describeScope())
	}
	return "", permanentf("CloudStack shows this address %d times in %s: set infrastructure.zone", len(found), s.describeScope())
}

// sshRules returns the active TCP rules that forward to the SSH port of any machine, by
// public port. Rules in another state, such as one that is being revoked, are left out.
// Of several that lead to the machine of q, whose VM ID is vm, only the first is kept.
func sshRules(q ForwardingRuleQuery, vm string, listed []*cloudstack.PortForwardingRule) ([]config.ForwardingRule, error) {
	var rules, own []config.ForwardingRule
	for _, rule := range listed {
		if rule.State != "Active" || !strings.EqualFold(rule.Protocol, "tcp") {
			continue
		}
		port, forwards, err := publicPort(rule, q.Port)
		if err != nil {
			return nil, fmt.Errorf("rule %s: %w", rule.Id, err)
		}
		if !forwards {
			continue
		}
		if vm != "" && rule.Virtualmachineid == vm {
			own = append(own, config.ForwardingRule{Node: q.Machine.Node, Port: port, State: rule.State})
			continue
		}
		// A name that no node has: it has a space.
		rules = append(rules, config.ForwardingRule{Node: "VM " + rule.Virtualmachinename, Port: port, State: rule.State})
	}
	byPort := func(a, b config.ForwardingRule) int { return cmp.Compare(a.Port, b.Port) }
	if len(own) > 0 {
		rules = append(rules, slices.MinFunc(own, byPort))
	}
	slices.SortFunc(rules, byPort)
	return rules, nil
}

// publicPort returns the public port that a rule forwards to a private one, and whether
// it forwards to that at all. Both sides of a rule may be ranges of the same length.
func publicPort(rule *cloudstack.PortForwardingRule, private int) (port int, forwards bool, err error) {
	var numbers [3]int
	for i, text := range []string{rule.Publicport, rule.Privateport, cmp.Or(rule.Privateendport, rule.Privateport)} {
		if numbers[i], err = strconv.Atoi(text); err != nil {
			return 0, false, fmt.Errorf("its port %.20q is not a number", text)
		}
	}
	public, first, last := numbers[0], numbers[1], numbers[2]
	return public + private - first, first <= private && private <= last, nil
}
