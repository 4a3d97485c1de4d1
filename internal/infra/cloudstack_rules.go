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

// Rules implements Forwarder.
func (c *cloudStack) Rules(ctx context.Context, q RuleQuery) ([]config.ForwardingRule, error) {
	s, closeSession := c.open(ctx)
	defer closeSession()
	rules, err := s.rules(q)
	if err != nil {
		return nil, fmt.Errorf("port-forwarding rules of %s: %w", q.PublicAddress, err)
	}
	return rules, nil
}

func (s *session) rules(q RuleQuery) ([]config.ForwardingRule, error) {
	in, err := s.scope()
	if err != nil {
		return nil, err
	}
	address, err := s.publicAddress(q.PublicAddress, in)
	if err != nil {
		return nil, err
	}
	id := vmID(q.Machine.ProviderID)
	if id == "" {
		vm, err := s.find(q.Machine)
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
	listed, err := pages(s, "listPortForwardingRules", params, func() ([]*cloudstack.PortForwardingRule, int, error) {
		got, err := s.api.Firewall.ListPortForwardingRules(params)
		if err != nil {
			return nil, 0, err
		}
		return got.PortForwardingRules, got.Count, nil
	})
	if err != nil {
		return nil, err
	}
	return rulesTo(q, id, listed)
}

// publicAddress is the ID of an address.
func (s *session) publicAddress(address string, in scope) (string, error) {
	if _, err := netip.ParseAddr(address); err != nil {
		return "", refuse("addressing.publicAddress must be an IP address for its rules to be found: write one, or list addressing.rules")
	}
	params := s.api.Address.NewListPublicIpAddressesParams()
	params.SetIpaddress(address)
	params.SetListall(true)
	in.limit(params)
	listed, err := pages(s, "listPublicIpAddresses", params, func() ([]*cloudstack.PublicIpAddress, int, error) {
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
		if sameAddress(one.Ipaddress, address) {
			found = append(found, one.Id)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "", refuse("CloudStack does not show this address in %s: correct addressing.publicAddress or infrastructure.project, or list addressing.rules", s.where())
	}
	return "", refuse("CloudStack shows this address %d times in %s: set infrastructure.zone", len(found), s.where())
}

// rulesTo are the rules that lead to an SSH port, the lowest public port first.
// One that is being revoked still exists for a while and may already lead
// elsewhere: it does not count. Of several that lead to the machine the first
// one is as good as any.
func rulesTo(q RuleQuery, vm string, listed []*cloudstack.PortForwardingRule) ([]config.ForwardingRule, error) {
	var rules, own []config.ForwardingRule
	for _, rule := range listed {
		if rule.State != "Active" || !strings.EqualFold(rule.Protocol, "tcp") {
			continue
		}
		port, leads, err := publicPort(rule, q.Port)
		if err != nil {
			return nil, fmt.Errorf("rule %s: %w", rule.Id, err)
		}
		if !leads {
			continue
		}
		if vm != "" && rule.Virtualmachineid == vm {
			own = append(own, config.ForwardingRule{Node: q.Machine.Node, Port: port, State: rule.State})
			continue
		}
		// No node's name has a space.
		rules = append(rules, config.ForwardingRule{Node: "VM " + rule.Virtualmachinename, Port: port, State: rule.State})
	}
	byPort := func(a, b config.ForwardingRule) int { return cmp.Compare(a.Port, b.Port) }
	if len(own) > 0 {
		rules = append(rules, slices.MinFunc(own, byPort))
	}
	slices.SortFunc(rules, byPort)
	return rules, nil
}

// publicPort is the public port that a rule forwards to a private one, if it
// does: both may be ranges, of the same length.
func publicPort(rule *cloudstack.PortForwardingRule, private int) (port int, leads bool, err error) {
	var numbers [3]int
	for i, text := range []string{rule.Publicport, rule.Privateport, orElse(rule.Privateendport, rule.Privateport)} {
		if numbers[i], err = strconv.Atoi(text); err != nil {
			return 0, false, fmt.Errorf("its port %.20q is not a number", text)
		}
	}
	public, first, last := numbers[0], numbers[1], numbers[2]
	return public + private - first, first <= private && private <= last, nil
}

func orElse(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
