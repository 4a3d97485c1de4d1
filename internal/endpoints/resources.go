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

// resourceTypes are the type URLs that are served. All resources of a service have the
// same name (see ResourceName).
var resourceTypes = []string{resource.ListenerType, resource.RouteType, resource.ClusterType, resource.EndpointType}

// routingResources returns the listener, the route configuration and the cluster that
// lead a client from the name of a service to its endpoints, by type URL. They depend
// on the name only.
func routingResources(name string) (map[string]types.Resource, error) {
	listener, err := apiListener(name)
	if err != nil {
		return nil, err
	}
	return map[string]types.Resource{resource.ListenerType: listener, resource.RouteType: routeConfiguration(name), resource.ClusterType: edsCluster(name)}, nil
}

// adsConfigSource makes the client request the next resource on the same ADS stream.
func adsConfigSource() *configcore.ConfigSource {
	return &configcore.ConfigSource{
		ResourceApiVersion:    configcore.ApiVersion_V3,
		ConfigSourceSpecifier: &configcore.ConfigSource_Ads{Ads: &configcore.AggregatedConfigSource{}},
	}
}

// apiListener returns the listener as gRPC clients use it, with the route by RDS.
func apiListener(name string) (*configlistener.Listener, error) {
	routerConfig, err := anypb.New(&router.Router{})
	if err != nil {
		return nil, err
	}
	api, err := marshalAny(&manager.HttpConnectionManager{
		RouteSpecifier: &manager.HttpConnectionManager_Rds{Rds: &manager.Rds{ConfigSource: adsConfigSource(), RouteConfigName: name}},
		HttpFilters:    []*manager.HttpFilter{{Name: wellknown.Router, ConfigType: &manager.HttpFilter_TypedConfig{TypedConfig: routerConfig}}},
	})
	if err != nil {
		return nil, err
	}
	return &configlistener.Listener{Name: name, ApiListener: &configlistener.ApiListener{ApiListener: api}}, nil
}

// marshalAny packs m deterministically, so that every gateway sends the same bytes.
func marshalAny(m proto.Message) (*anypb.Any, error) {
	a := new(anypb.Any)
	return a, anypb.MarshalFrom(a, m, proto.MarshalOptions{Deterministic: true})
}

// routeConfiguration returns a configuration that routes every request to the cluster
// of the same name.
func routeConfiguration(name string) *configroute.RouteConfiguration {
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

// edsCluster returns a cluster whose endpoints come by EDS. Its panic threshold is 0:
// when few endpoints are healthy, Envoy must not send new traffic to draining ones.
func edsCluster(name string) *configcluster.Cluster {
	return &configcluster.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &configcluster.Cluster_Type{Type: configcluster.Cluster_EDS},
		EdsClusterConfig:     &configcluster.Cluster_EdsClusterConfig{EdsConfig: adsConfigSource(), ServiceName: name},
		LbPolicy:             configcluster.Cluster_ROUND_ROBIN,
		CommonLbConfig:       &configcluster.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{Value: 0}},
	}
}
