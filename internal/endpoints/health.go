// Package endpoints is an xDS server that tells Envoy and gRPC clients which endpoints
// of Kubernetes Services take new traffic.
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

// Health is the health of an endpoint as clients get it.
type Health int

// Healths of an endpoint.
const (
	Unhealthy Health = iota // gets no traffic
	Draining                // finishes what it has, gets no new traffic
	Healthy                 // gets new traffic
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
	// Number is the port of the Service. It is also the target port of endpoints whose
	// slice has the port without a number, which means all numbers.
	Number int32
}

// ComputeEndpoints returns every endpoint of one port of a service in one address family
// with its health, sorted by zone and address. all are the EndpointSlices of the service
// in any order. Endpoints on nodes for which draining returns true count as terminating.
//
// An endpoint that is ready (serving and not terminating) is Healthy. One that is
// terminating is Draining when any endpoint of the service, of whatever slice or zone,
// is ready; otherwise it is Healthy as long as it is serving.
func ComputeEndpoints(all []*discovery.EndpointSlice, family discovery.AddressType, port Port, draining func(node string) bool) []Endpoint {
	found := map[netip.AddrPort]candidate{}
	for _, slice := range all {
		number := targetPort(slice, port)
		if slice.AddressType != family || number == 0 {
			continue
		}
		for i := range slice.Endpoints {
			c, ok := candidateOf(&slice.Endpoints[i], number, draining)
			if known, twice := found[c.address]; ok && (!twice || c.compare(known) < 0) {
				found[c.address] = c
			}
		}
	}
	hasReady := false // an endpoint is serving and not terminating
	for _, c := range found {
		hasReady = hasReady || c.serving && !c.terminating
	}
	endpoints := make([]Endpoint, 0, len(found))
	for _, c := range found {
		endpoints = append(endpoints, Endpoint{Address: c.address, Zone: c.zone, Health: c.health(hasReady)})
	}
	slices.SortFunc(endpoints, func(a, b Endpoint) int {
		return cmp.Or(cmp.Compare(a.Zone, b.Zone), a.Address.Compare(b.Address))
	})
	return endpoints
}

// targetPort returns the number of a service's port on the endpoints of a slice, 0 when
// they do not have it: the controller leaves a port out for pods that lack the named
// target port, all of them if need be.
func targetPort(slice *discovery.EndpointSlice, port Port) uint16 {
	for _, p := range slice.Ports {
		if ptr.Deref(p.Name, "") == port.Name && protocolOrTCP(ptr.Deref(p.Protocol, "")) == protocolOrTCP(port.Protocol) {
			return validPort(ptr.Deref(p.Port, port.Number))
		}
	}
	return 0
}

// validPort returns n, or 0 when it is no port number.
func validPort(n int32) uint16 {
	if n < 1 || n > math.MaxUint16 {
		return 0
	}
	return uint16(n)
}

// protocolOrTCP returns p, or TCP, the API's default, when it is empty.
func protocolOrTCP(p core.Protocol) core.Protocol { return cmp.Or(p, core.ProtocolTCP) }

// candidate is an endpoint as one slice has it.
type candidate struct {
	address     netip.AddrPort
	zone, node  string
	serving     bool
	terminating bool
}

// candidateOf returns an endpoint of a slice with its first address, the only one that
// the API gives a meaning; not ok when that is no IP address.
func candidateOf(e *discovery.Endpoint, number uint16, draining func(node string) bool) (c candidate, ok bool) {
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
		terminating: ptr.Deref(e.Conditions.Terminating, false) || node != "" && draining(node),
	}, true
}

// serving reports whether an endpoint may get traffic, with the API's defaults: serving
// defaults to ready, and ready to true. ready without serving is an endpoint of a
// service with publishNotReadyAddresses, which gets traffic all the same.
func serving(c discovery.EndpointConditions) bool {
	return ptr.Deref(c.Ready, false) || ptr.Deref(c.Serving, ptr.Deref(c.Ready, true))
}

// compare orders the candidates of one address, which may be in several slices: serving
// and not terminating first, then by zone and node, so that the order of slices does not
// matter.
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

// health returns the health of an endpoint. hasReady: any endpoint of the service is
// serving and not terminating. ComputeEndpoints explains the rule.
func (c candidate) health(hasReady bool) Health {
	switch {
	case !c.terminating && c.serving:
		return Healthy
	case !c.terminating:
		return Unhealthy
	case hasReady:
		return Draining
	case c.serving:
		return Healthy
	}
	return Unhealthy
}
