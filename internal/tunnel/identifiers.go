// Package tunnel decides over which agent's connection a dial goes. It knows nothing of
// streams: what agents offer and how their connections are doing are its facts.
package tunnel

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Identifiers are what an agent offers to reach.
type Identifiers struct {
	Addresses    []netip.Addr   // hosts by address: ipv4 and ipv6
	Hosts        []string       // hosts by name, in lower case
	Networks     []netip.Prefix // networks: cidr
	DefaultRoute bool           // everything that no other agent offers
}

// ParseIdentifiers reads what konnectivity's agents send as agentIdentifiers: a URL query such
// as "ipv4=10.0.0.7&host=w1&cidr=10.0.0.0/24&default-route=true". The error names the
// part that is wrong.
func ParseIdentifiers(text string) (ids Identifiers, err error) {
	values, err := url.ParseQuery(text)
	if err != nil {
		return Identifiers{}, fmt.Errorf("agentIdentifiers %q: %w", text, err)
	}
	for key, all := range values {
		for _, value := range all {
			if err := ids.add(key, value); err != nil {
				return Identifiers{}, fmt.Errorf("agentIdentifiers: %s=%q: %w", key, value, err)
			}
		}
	}
	return ids, nil
}

func (ids *Identifiers) add(key, value string) error {
	switch key {
	case "ipv4", "ipv6":
		address, err := netip.ParseAddr(value)
		if err != nil {
			return err
		}
		if address = address.Unmap(); address.Is4() != (key == "ipv4") {
			return errors.New("the address is of the other family")
		}
		ids.Addresses = append(ids.Addresses, address)
	case "host":
		if value == "" {
			return errors.New("the name is empty")
		}
		ids.Hosts = append(ids.Hosts, strings.ToLower(value))
	case "cidr":
		network, err := netip.ParsePrefix(value)
		if err != nil {
			return err
		}
		ids.Networks = append(ids.Networks, network.Masked())
	case "default-route":
		yes, err := strconv.ParseBool(value)
		if err != nil {
			return errors.New("want true or false")
		}
		ids.DefaultRoute = ids.DefaultRoute || yes
	default:
		return errors.New("want ipv4, ipv6, host, cidr or default-route")
	}
	return nil
}

// String returns the identifiers as ParseIdentifiers reads them.
func (ids Identifiers) String() string {
	values := url.Values{}
	for _, a := range ids.Addresses {
		key := "ipv6"
		if a.Is4() {
			key = "ipv4"
		}
		values.Add(key, a.String())
	}
	for _, h := range ids.Hosts {
		values.Add("host", h)
	}
	for _, n := range ids.Networks {
		values.Add("cidr", n.String())
	}
	if ids.DefaultRoute {
		values.Add("default-route", "true")
	}
	return values.Encode()
}

// Within returns nil when everything that is offered is part of what is allowed, else an
// error that names the first that is not.
func (ids Identifiers) Within(allowed Identifiers) error {
	for _, a := range ids.Addresses {
		if allowed.specificity(Destination{Address: a}) == 0 {
			return fmt.Errorf("the address %s is not among what the cluster may offer", a)
		}
	}
	for _, h := range ids.Hosts {
		if !slices.Contains(allowed.Hosts, h) && !slices.Contains(allowed.Hosts, "*") {
			return fmt.Errorf("the host %s is not among what the cluster may offer", h)
		}
	}
	for _, n := range ids.Networks {
		inside := func(a netip.Prefix) bool { return a.Bits() <= n.Bits() && a.Contains(n.Addr()) }
		if !slices.ContainsFunc(allowed.Networks, inside) {
			return fmt.Errorf("the network %s is not among what the cluster may offer", n)
		}
	}
	if ids.DefaultRoute && !allowed.DefaultRoute {
		return errors.New("a default route is not among what the cluster may offer")
	}
	return nil
}

// specificity returns 0 when no identifier but a default route leads to a destination, and
// else more the more it is meant: a host by its address or name before a network, a small
// network before a large one.
func (ids Identifiers) specificity(d Destination) int {
	const host = 1000 // more than any prefix has bits
	if d.Host != "" && slices.Contains(ids.Hosts, d.Host) {
		return host
	}
	if !d.Address.IsValid() {
		return 0
	}
	if slices.Contains(ids.Addresses, d.Address) {
		return host
	}
	best := 0
	for _, n := range ids.Networks {
		if n.Contains(d.Address) {
			best = max(best, n.Bits()+1)
		}
	}
	return best
}
