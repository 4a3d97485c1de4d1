package endpoints

import (
	configcore "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	configendpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	core "k8s.io/api/core/v1"
)

var healthStatus = map[Health]configcore.HealthStatus{
	Healthy: configcore.HealthStatus_HEALTHY, Draining: configcore.HealthStatus_DRAINING, Unhealthy: configcore.HealthStatus_UNHEALTHY,
}

// socketProtocols are the protocols that an Envoy socket address can have.
var socketProtocols = map[core.Protocol]configcore.SocketAddress_Protocol{
	core.ProtocolTCP: configcore.SocketAddress_TCP, core.ProtocolUDP: configcore.SocketAddress_UDP,
}

// loadAssignment returns the EDS resource of endpoints, which must be sorted by zone as
// ComputeEndpoints does. It has a locality for each zone, also for an unknown one. The
// weight of a locality is the number of its healthy endpoints, so that each gets the
// same share of traffic, and at least 1, the least that clients accept.
func loadAssignment(name string, protocol core.Protocol, endpoints []Endpoint) *configendpoint.ClusterLoadAssignment {
	a := &configendpoint.ClusterLoadAssignment{ClusterName: name}
	var locality *configendpoint.LocalityLbEndpoints
	healthy := uint32(0)
	for _, e := range endpoints {
		if locality == nil || e.Zone != locality.GetLocality().GetZone() {
			locality, healthy = &configendpoint.LocalityLbEndpoints{Locality: &configcore.Locality{Zone: e.Zone}, LoadBalancingWeight: wrapperspb.UInt32(1)}, 0
			a.Endpoints = append(a.Endpoints, locality)
		}
		if e.Health == Healthy {
			healthy++
			locality.LoadBalancingWeight.Value = healthy
		}
		locality.LbEndpoints = append(locality.LbEndpoints, lbEndpoint(e, protocol))
	}
	return a
}

// lbEndpoint returns an endpoint of a locality; all have the same weight.
func lbEndpoint(e Endpoint, protocol core.Protocol) *configendpoint.LbEndpoint {
	return &configendpoint.LbEndpoint{
		HealthStatus:        healthStatus[e.Health],
		LoadBalancingWeight: wrapperspb.UInt32(1),
		HostIdentifier: &configendpoint.LbEndpoint_Endpoint{Endpoint: &configendpoint.Endpoint{
			Address: &configcore.Address{Address: &configcore.Address_SocketAddress{SocketAddress: &configcore.SocketAddress{
				Protocol: socketProtocols[protocolOrTCP(protocol)], Address: e.Address.Addr().String(),
				PortSpecifier: &configcore.SocketAddress_PortValue{PortValue: uint32(e.Address.Port())},
			}}},
		}},
	}
}
