package endpoints

import (
	configcluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	configcore "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	configlistener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	configroute "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	router "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	manager "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/wellknown"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// served are the types of resources that clients may ask for. All resources of a
// service have the name that the client asked for first.
var served = []string{resource.ListenerType, resource.RouteType, resource.ClusterType, resource.EndpointType}

// way is what leads a client from the name of a service to its endpoints: everything
// but those. It is the same for every service and never changes.
func way(name string) (map[string]types.Resource, error) {
	listener, err := listenerOf(name)
	if err != nil {
		return nil, err
	}
	return map[string]types.Resource{resource.ListenerType: listener, resource.RouteType: routeOf(name), resource.ClusterType: clusterOf(name)}, nil
}

// sameStream has the client ask for the next resource on the stream on which it got
// this one.
func sameStream() *configcore.ConfigSource {
	return &configcore.ConfigSource{
		ResourceApiVersion:    configcore.ApiVersion_V3,
		ConfigSourceSpecifier: &configcore.ConfigSource_Ads{Ads: &configcore.AggregatedConfigSource{}},
	}
}

func listenerOf(name string) (*configlistener.Listener, error) {
	last, err := anypb.New(&router.Router{})
	if err != nil {
		return nil, err
	}
	api, err := marshal(&manager.HttpConnectionManager{
		RouteSpecifier: &manager.HttpConnectionManager_Rds{Rds: &manager.Rds{ConfigSource: sameStream(), RouteConfigName: name}},
		HttpFilters:    []*manager.HttpFilter{{Name: wellknown.Router, ConfigType: &manager.HttpFilter_TypedConfig{TypedConfig: last}}},
	})
	if err != nil {
		return nil, err
	}
	return &configlistener.Listener{Name: name, ApiListener: &configlistener.ApiListener{ApiListener: api}}, nil
}

// marshal is deterministic, so that every gateway says the same.
func marshal(m proto.Message) (*anypb.Any, error) {
	a := new(anypb.Any)
	return a, anypb.MarshalFrom(a, m, proto.MarshalOptions{Deterministic: true})
}

func routeOf(name string) *configroute.RouteConfiguration {
	all := &configroute.Route{
		Match: &configroute.RouteMatch{PathSpecifier: &configroute.RouteMatch_Prefix{Prefix: ""}},
		Action: &configroute.Route_Route{Route: &configroute.RouteAction{
			ClusterSpecifier: &configroute.RouteAction_Cluster{Cluster: name},
		}},
	}
	return &configroute.RouteConfiguration{
		Name: name, VirtualHosts: []*configroute.VirtualHost{{Name: name, Domains: []string{"*"}, Routes: []*configroute.Route{all}}},
	}
}

// clusterOf has no panic threshold: below it, Envoy would send new traffic to
// endpoints that drain, however few the others are.
func clusterOf(name string) *configcluster.Cluster {
	return &configcluster.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &configcluster.Cluster_Type{Type: configcluster.Cluster_EDS},
		EdsClusterConfig:     &configcluster.Cluster_EdsClusterConfig{EdsConfig: sameStream(), ServiceName: name},
		LbPolicy:             configcluster.Cluster_ROUND_ROBIN,
		CommonLbConfig:       &configcluster.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{Value: 0}},
	}
}
