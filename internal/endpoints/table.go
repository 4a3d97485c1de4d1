// Package endpoints decides which endpoints of a service new traffic may go to, and
// tells Envoy and gRPC clients over xDS.
package endpoints

import (
	"cmp"
	"math"
	"net/netip"
	"slices"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
)

// Health is what clients are told of an endpoint.
type Health int

// Healths of an endpoint.
const (
	Unhealthy Health = iota // takes nothing
	Draining                // finishes what it has, takes nothing new
	Healthy                 // takes new traffic
)

// Endpoint is an address at which a port of a service is reached.
type Endpoint struct {
	Address netip.AddrPort
	Zone    string // "" = unknown
	Health  Health
}

// Port is a port of a service.
type Port struct {
	Name     string        // "" = unnamed
	Protocol core.Protocol // "" = TCP
	// Number is the service's own. Endpoints are reached at it whose slice names no
	// port, which stands for all of them.
	Number int32
}

// Decide is every endpoint of one port of a service in one address family, sorted by
// zone and address. Slices are all those of the service, in any order. Endpoints on
// nodes that are leaving count as terminating.
//
// An endpoint that serves and stays takes traffic. One that terminates goes on taking
// it as long as it serves and nobody is there who serves and stays; then it drains.
// That is decided over all endpoints together: neither slices nor zones matter.
func Decide(all []*discovery.EndpointSlice, family discovery.AddressType, port Port, leaving func(node string) bool) []Endpoint {
	found := map[netip.AddrPort]candidate{}
	for _, slice := range all {
		number := numberIn(slice, port)
		if slice.AddressType != family || number == 0 {
			continue
		}
		for i := range slice.Endpoints {
			c, ok := candidateOf(&slice.Endpoints[i], number, leaving)
			if known, twice := found[c.address]; ok && (!twice || c.compare(known) < 0) {
				found[c.address] = c
			}
		}
	}
	replaced := false // is there anybody who serves and stays?
	for _, c := range found {
		replaced = replaced || c.serving && !c.terminating
	}
	decided := make([]Endpoint, 0, len(found))
	for _, c := range found {
		decided = append(decided, Endpoint{Address: c.address, Zone: c.zone, Health: c.health(replaced)})
	}
	slices.SortFunc(decided, func(a, b Endpoint) int {
		return cmp.Or(cmp.Compare(a.Zone, b.Zone), a.Address.Compare(b.Address))
	})
	return decided
}

// numberIn is the number of a service's port at the endpoints of a slice, 0 = they
// do not have it.
func numberIn(slice *discovery.EndpointSlice, port Port) uint16 {
	if len(slice.Ports) == 0 {
		return portNumber(port.Number)
	}
	for _, p := range slice.Ports {
		if ptr.Deref(p.Name, "") == port.Name && protocol(ptr.Deref(p.Protocol, "")) == protocol(port.Protocol) {
			return portNumber(ptr.Deref(p.Port, port.Number))
		}
	}
	return 0
}

func portNumber(n int32) uint16 {
	if n < 1 || n > math.MaxUint16 {
		return 0
	}
	return uint16(n)
}

// protocol is what a protocol that may be left out stands for.
func protocol(p core.Protocol) core.Protocol { return cmp.Or(p, core.ProtocolTCP) }

// candidate is an endpoint as one slice has it.
type candidate struct {
	address     netip.AddrPort
	zone, node  string
	serving     bool
	terminating bool
}

// candidateOf reads an endpoint. Only its first address counts: the API gives others
// no meaning. Not ok is one whose address is no IP address.
func candidateOf(e *discovery.Endpoint, number uint16, leaving func(node string) bool) (c candidate, ok bool) {
	if len(e.Addresses) == 0 {
		return candidate{}, false
	}
	address, err := netip.ParseAddr(e.Addresses[0])
	if err != nil {
		return candidate{}, false
	}
	node := ptr.Deref(e.NodeName, "")
	return candidate{
		address: netip.AddrPortFrom(address, number), zone: ptr.Deref(e.Zone, ""), node: node,
		serving:     serving(e.Conditions),
		terminating: ptr.Deref(e.Conditions.Terminating, false) || node != "" && leaving(node),
	}, true
}

// serving reads the conditions as the API defines them: serving that is left out is
// ready, and ready that is left out is true. Ready that is stated although it does not
// serve is publishNotReadyAddresses, which wants traffic all the same.
func serving(c discovery.EndpointConditions) bool {
	return ptr.Deref(c.Ready, false) || ptr.Deref(c.Serving, ptr.Deref(c.Ready, true))
}

// compare orders candidates of one address, which may be in several slices: the best
// first. The rest makes it the same whatever order they come in.
func (c candidate) compare(o candidate) int {
	return cmp.Or(trueFirst(c.serving, o.serving), trueFirst(!c.terminating, !o.terminating), cmp.Compare(c.zone, o.zone), cmp.Compare(c.node, o.node))
}

// trueFirst orders true before false.
func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// health is the rule. Replaced: somebody serves and stays.
func (c candidate) health(replaced bool) Health {
	switch {
	case !c.terminating && c.serving:
		return Healthy
	case !c.terminating:
		return Unhealthy
	case replaced:
		return Draining
	case c.serving:
		return Healthy
	}
	return Unhealthy
}
