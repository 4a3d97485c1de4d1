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

// transports are the protocols that an Envoy address can have.
var transports = map[core.Protocol]configcore.SocketAddress_Protocol{
	core.ProtocolTCP: configcore.SocketAddress_TCP, core.ProtocolUDP: configcore.SocketAddress_UDP,
}

// assignment is what a client is told. Endpoints are sorted as Decide does. There is a
// locality for each zone, also for the unknown one; its weight is the number of its
// endpoints that take new traffic, so that each of them gets the same share wherever it
// is, and at least 1, which is the least that clients accept.
func assignment(name string, transport core.Protocol, endpoints []Endpoint) *configendpoint.ClusterLoadAssignment {
	a := &configendpoint.ClusterLoadAssignment{ClusterName: name}
	var zone *configendpoint.LocalityLbEndpoints
	healthy := uint32(0)
	for _, e := range endpoints {
		if zone == nil || e.Zone != zone.GetLocality().GetZone() {
			zone, healthy = &configendpoint.LocalityLbEndpoints{Locality: &configcore.Locality{Zone: e.Zone}, LoadBalancingWeight: wrapperspb.UInt32(1)}, 0
			a.Endpoints = append(a.Endpoints, zone)
		}
		if e.Health == Healthy {
			healthy++
			zone.LoadBalancingWeight.Value = healthy
		}
		zone.LbEndpoints = append(zone.LbEndpoints, lbEndpoint(e, transport))
	}
	return a
}

func lbEndpoint(e Endpoint, transport core.Protocol) *configendpoint.LbEndpoint {
	return &configendpoint.LbEndpoint{
		HealthStatus:        healthStatus[e.Health],
		LoadBalancingWeight: wrapperspb.UInt32(1),
		HostIdentifier: &configendpoint.LbEndpoint_Endpoint{Endpoint: &configendpoint.Endpoint{
			Address: &configcore.Address{Address: &configcore.Address_SocketAddress{SocketAddress: &configcore.SocketAddress{
				Protocol: transports[protocol(transport)], Address: e.Address.Addr().String(),
				PortSpecifier: &configcore.SocketAddress_PortValue{PortValue: uint32(e.Address.Port())},
			}}},
		}},
	}
}
