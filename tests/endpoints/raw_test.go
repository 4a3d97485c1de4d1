package endpoints

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	configcluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	configendpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	configlistener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	configroute "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// patience bounds every wait for an update.
const patience = 30 * time.Second

// update is one response, from either kind of stream.
type update struct {
	kind, version, nonce string
	resources            map[string]proto.Message
}

// subscriber is a client of one stream. It accepts everything that is valid.
type subscriber struct {
	t       *testing.T
	ask     func(kind string, names []string, last update) // asks, or accepts what came last
	updates chan update
	ended   chan error
	names   map[string][]string
	has     map[string]proto.Message // by type and name
}

func connection(t *testing.T, address string, options []grpc.DialOption) discovery.AggregatedDiscoveryServiceClient {
	t.Helper()
	if len(options) == 0 {
		options = []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	}
	c, err := grpc.NewClient(address, options...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return discovery.NewAggregatedDiscoveryServiceClient(c)
}

// clusters is a context whose streams may ask for those clusters only.
func clusters(ctx context.Context, names ...string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "clusters", strings.Join(names, ","))
}

func newSubscriber(t *testing.T) *subscriber {
	return &subscriber{t: t, updates: make(chan update, 100), ended: make(chan error, 1), names: map[string][]string{}, has: map[string]proto.Message{}}
}

// refused is a subscriber that could not even open its stream.
func (s *subscriber) refused(err error) *subscriber {
	s.ask = func(string, []string, update) {}
	s.ended <- err
	return s
}

// sotw is a subscriber to the state of the world.
func sotw(ctx context.Context, t *testing.T, address string, options ...grpc.DialOption) *subscriber {
	t.Helper()
	s := newSubscriber(t)
	stream, err := connection(t, address, options).StreamAggregatedResources(ctx)
	if err != nil {
		return s.refused(err)
	}
	s.ask = func(kind string, names []string, last update) {
		s.names[kind] = names
		err := stream.Send(&discovery.DiscoveryRequest{TypeUrl: kind, ResourceNames: names, VersionInfo: last.version, ResponseNonce: last.nonce})
		require.True(t, err == nil || errors.Is(err, io.EOF), "%v", err) // EOF: Recv has the reason
	}
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				s.ended <- err
				return
			}
			u := update{kind: r.GetTypeUrl(), version: r.GetVersionInfo(), nonce: r.GetNonce(), resources: map[string]proto.Message{}}
			for _, one := range r.GetResources() {
				name, m := read(t, one)
				u.resources[name] = m
			}
			s.updates <- u
		}
	}()
	return s
}

// delta is a subscriber to changes.
func delta(ctx context.Context, t *testing.T, address string, options ...grpc.DialOption) *subscriber {
	t.Helper()
	s := newSubscriber(t)
	stream, err := connection(t, address, options).DeltaAggregatedResources(ctx)
	if err != nil {
		return s.refused(err)
	}
	s.ask = func(kind string, names []string, last update) {
		r := &discovery.DeltaDiscoveryRequest{TypeUrl: kind, ResponseNonce: last.nonce}
		for _, name := range names {
			if !slices.Contains(s.names[kind], name) {
				r.ResourceNamesSubscribe = append(r.ResourceNamesSubscribe, name)
			}
		}
		for _, name := range s.names[kind] {
			if !slices.Contains(names, name) {
				r.ResourceNamesUnsubscribe = append(r.ResourceNamesUnsubscribe, name)
			}
		}
		s.names[kind] = names
		err := stream.Send(r)
		require.True(t, err == nil || errors.Is(err, io.EOF), "%v", err)
	}
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				s.ended <- err
				return
			}
			u := update{kind: r.GetTypeUrl(), version: r.GetSystemVersionInfo(), nonce: r.GetNonce(), resources: map[string]proto.Message{}}
			for _, one := range r.GetResources() {
				name, m := read(t, one.GetResource())
				u.resources[name] = m
			}
			s.updates <- u
		}
	}()
	return s
}

// read decodes and validates a resource.
func read(t *testing.T, packed *anypb.Any) (name string, m proto.Message) {
	m, err := packed.UnmarshalNew()
	if err != nil {
		t.Error(err)
		return "", nil
	}
	if err := m.(interface{ ValidateAll() error }).ValidateAll(); err != nil {
		t.Error(err)
	}
	switch r := m.(type) {
	case *configendpoint.ClusterLoadAssignment:
		return r.GetClusterName(), r
	case *configcluster.Cluster:
		return r.GetName(), r
	case *configlistener.Listener:
		return r.GetName(), r
	case *configroute.RouteConfiguration:
		return r.GetName(), r
	}
	t.Errorf("a resource of type %T", m)
	return "", nil
}

// receive takes the next update and accepts it.
func (s *subscriber) receive() (u update, ok bool) {
	s.t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case u = <-s.updates:
		for name, m := range u.resources {
			s.has[u.kind+" "+name] = m
		}
		s.ask(u.kind, s.names[u.kind], u)
		return u, true
	case err := <-s.ended:
		require.NoError(s.t, err, "the stream has ended")
	case <-timer.C:
	}
	return update{}, false
}

// next is the next update.
func (s *subscriber) next() update {
	s.t.Helper()
	u, ok := s.receive()
	require.True(s.t, ok, "no update")
	return u
}

// until takes updates until the endpoints of a service are as wanted: healths by the
// address.
func (s *subscriber) until(name string, want map[string]string) {
	s.t.Helper()
	for !maps.Equal(s.told(name), want) {
		if _, ok := s.receive(); !ok {
			require.Equal(s.t, want, s.told(name), "what was told of %s", name)
		}
	}
}

// told are the endpoints of a service as it was told of them last.
func (s *subscriber) told(name string) map[string]string {
	found := map[string]string{}
	a, ok := s.has[resource.EndpointType+" "+name].(*configendpoint.ClusterLoadAssignment)
	if !ok {
		return nil
	}
	for _, zone := range a.GetEndpoints() {
		for _, e := range zone.GetLbEndpoints() {
			at := e.GetEndpoint().GetAddress().GetSocketAddress()
			found[at.GetAddress()] = e.GetHealthStatus().String()
		}
	}
	return found
}

// quiet makes sure that nothing more has come: what is asked for afterwards is
// answered first.
func (s *subscriber) quiet(other string) {
	s.t.Helper()
	s.ask(resource.ClusterType, []string{other}, update{})
	require.Equal(s.t, resource.ClusterType, s.next().kind, "an update that nobody needs")
}
