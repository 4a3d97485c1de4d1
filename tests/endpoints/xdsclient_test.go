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
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/stretchr/testify/require"
	rpc "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// waitTimeout bounds every wait for a response.
const waitTimeout = 30 * time.Second

// response is a discovery response of either protocol variant.
type response struct {
	typeURL, version, nonce string
	resources               map[string]proto.Message
	versions                map[string]string      // of resources, by delta
	removed                 []string               // by delta
	refused                 map[string]*rpc.Status // why names have no resource
}

func refusedNames(all []*discovery.ResourceError) map[string]*rpc.Status {
	refused := map[string]*rpc.Status{}
	for _, one := range all {
		refused[one.GetResourceName().GetName()] = one.GetErrorDetail()
	}
	return refused
}

// xdsClient is an xDS client with one ADS stream. It ACKs every response and fails the
// test when a resource is not valid.
type xdsClient struct {
	t          *testing.T
	request    func(kind string, names []string, last response) // requests names, and ACKs last unless it is zero
	responses  chan response
	streamErr  chan error
	subscribed map[string][]string
	resources  map[string]proto.Message // by type and name
	initial    map[string]string        // versions by name that a delta client has when it comes
	versions   map[string]string        // by name, as delta has told them
	implicit   bool                     // requests have no type: the service has only one
}

func dial(t *testing.T, address string, options []grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	if len(options) == 0 {
		options = []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	}
	c, err := grpc.NewClient(address, options...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// withClusters returns a context whose streams may ask for those clusters only.
func withClusters(ctx context.Context, names ...string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "clusters", strings.Join(names, ","))
}

func newXDSClient(t *testing.T) *xdsClient {
	return &xdsClient{t: t, responses: make(chan response, 100), streamErr: make(chan error, 1), subscribed: map[string][]string{}, resources: map[string]proto.Message{}, versions: map[string]string{}}
}

// failed makes s a client that could not open its stream, and returns it.
func (s *xdsClient) failed(err error) *xdsClient {
	s.request = func(string, []string, response) {}
	s.streamErr <- err
	return s
}

// openSotW returns a client with a state-of-the-world stream.
func openSotW(ctx context.Context, t *testing.T, address string, options ...grpc.DialOption) *xdsClient {
	t.Helper()
	s := newXDSClient(t)
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(dial(t, address, options)).StreamAggregatedResources(ctx)
	if err != nil {
		return s.failed(err)
	}
	s.request = func(kind string, names []string, last response) {
		s.subscribed[kind] = names
		err := stream.Send(&discovery.DiscoveryRequest{TypeUrl: kind, ResourceNames: names, VersionInfo: last.version, ResponseNonce: last.nonce})
		require.True(t, err == nil || errors.Is(err, io.EOF), "%v", err) // EOF: Recv has the reason
	}
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				s.streamErr <- err
				return
			}
			u := response{typeURL: r.GetTypeUrl(), version: r.GetVersionInfo(), nonce: r.GetNonce(), resources: map[string]proto.Message{}, refused: refusedNames(r.GetResourceErrors())}
			for _, one := range r.GetResources() {
				name, m := decodeResource(t, one)
				u.resources[name] = m
			}
			s.responses <- u
		}
	}()
	return s
}

// openDelta returns a client with a delta stream.
func openDelta(ctx context.Context, t *testing.T, address string, options ...grpc.DialOption) *xdsClient {
	t.Helper()
	s := newXDSClient(t)
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(dial(t, address, options)).DeltaAggregatedResources(ctx)
	if err != nil {
		return s.failed(err)
	}
	s.useDelta(stream)
	return s
}

// openDeltaEDS returns a client with a delta stream of the service that has endpoints
// only, whose requests need not say so.
func openDeltaEDS(ctx context.Context, t *testing.T, address string, options ...grpc.DialOption) *xdsClient {
	t.Helper()
	s := newXDSClient(t)
	s.implicit = true
	stream, err := endpointservice.NewEndpointDiscoveryServiceClient(dial(t, address, options)).DeltaEndpoints(ctx)
	if err != nil {
		return s.failed(err)
	}
	s.useDelta(stream)
	return s
}

// deltaStream is a stream of either service.
type deltaStream interface {
	Send(*discovery.DeltaDiscoveryRequest) error
	Recv() (*discovery.DeltaDiscoveryResponse, error)
}

// useDelta makes s a client of a delta stream. Its first request of a type says what it
// has already.
func (s *xdsClient) useDelta(stream deltaStream) {
	t := s.t
	s.request = func(kind string, names []string, last response) {
		r := &discovery.DeltaDiscoveryRequest{TypeUrl: kind, ResponseNonce: last.nonce}
		if s.implicit {
			r.TypeUrl = ""
		}
		if _, later := s.subscribed[kind]; !later {
			r.InitialResourceVersions = s.initial
		}
		for _, name := range names {
			if !slices.Contains(s.subscribed[kind], name) {
				r.ResourceNamesSubscribe = append(r.ResourceNamesSubscribe, name)
			}
		}
		for _, name := range s.subscribed[kind] {
			if !slices.Contains(names, name) {
				r.ResourceNamesUnsubscribe = append(r.ResourceNamesUnsubscribe, name)
			}
		}
		s.subscribed[kind] = names
		err := stream.Send(r)
		require.True(t, err == nil || errors.Is(err, io.EOF), "%v", err)
	}
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				s.streamErr <- err
				return
			}
			u := response{typeURL: r.GetTypeUrl(), version: r.GetSystemVersionInfo(), nonce: r.GetNonce(), resources: map[string]proto.Message{}, versions: map[string]string{}, removed: r.GetRemovedResources(), refused: refusedNames(r.GetResourceErrors())}
			for _, one := range r.GetResources() {
				name, m := decodeResource(t, one.GetResource())
				u.resources[name], u.versions[name] = m, one.GetVersion()
			}
			s.responses <- u
		}
	}()
}

// decodeResource decodes and validates a resource.
func decodeResource(t *testing.T, packed *anypb.Any) (name string, m proto.Message) {
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

// receiveAndACK takes the next update and accepts it.
func (s *xdsClient) receiveAndACK() (u response, ok bool) {
	s.t.Helper()
	timer := time.NewTimer(waitTimeout)
	defer timer.Stop()
	select {
	case u = <-s.responses:
		for name, m := range u.resources {
			s.resources[u.typeURL+" "+name] = m
		}
		maps.Copy(s.versions, u.versions)
		s.request(u.typeURL, s.subscribed[u.typeURL], u)
		return u, true
	case err := <-s.streamErr:
		require.NoError(s.t, err, "the stream has ended")
	case <-timer.C:
	}
	return response{}, false
}

// refusal returns the error of a name in the next update, or that of the stream if it ends.
func (s *xdsClient) refusal(name string) error {
	s.t.Helper()
	select {
	case u := <-s.responses:
		return status.ErrorProto(u.refused[name])
	case err := <-s.streamErr:
		return err
	}
}

// nextResponse returns the next update.
func (s *xdsClient) nextResponse() response {
	s.t.Helper()
	u, ok := s.receiveAndACK()
	require.True(s.t, ok, "no update")
	return u
}

// waitForEndpoints takes updates until the endpoints of a service are as wanted: healths by the
// address.
func (s *xdsClient) waitForEndpoints(name string, want map[string]string) {
	s.t.Helper()
	for !maps.Equal(s.endpoints(name), want) {
		if _, ok := s.receiveAndACK(); !ok {
			require.Equal(s.t, want, s.endpoints(name), "what was told of %s", name)
		}
	}
}

// endpoints returns the endpoints of a service as it was told of them last.
func (s *xdsClient) endpoints(name string) map[string]string {
	found := map[string]string{}
	a, ok := s.resources[resource.EndpointType+" "+name].(*configendpoint.ClusterLoadAssignment)
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

// requireNoResponse makes sure that nothing more has come: what is asked for afterwards is
// answered first.
func (s *xdsClient) requireNoResponse(other string) {
	s.t.Helper()
	s.request(resource.ClusterType, []string{other}, response{})
	require.Equal(s.t, resource.ClusterType, s.nextResponse().typeURL, "an update that nobody needs")
}
