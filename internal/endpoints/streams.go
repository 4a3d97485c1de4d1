package endpoints

import (
	"context"

	configcore "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	xdscache "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/sotw/v3"
	xdsserver "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"go.uber.org/zap"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
)

// streamID identifies a stream of a client.
type streamID struct {
	number int64
	delta  bool // state-of-the-world and delta streams are numbered separately
}

// stream is the subscriptions of one stream.
type stream struct {
	subscribed map[string]bool // by resource name
	authorize  func(cluster string) error
}

type authorizerKey struct{}

// WithAuthorizer returns a context for a stream that may only request services of the
// clusters for which authorize returns nil. Its error, a gRPC status, ends the stream.
func WithAuthorizer(ctx context.Context, authorize func(cluster string) error) context.Context {
	return context.WithValue(ctx, authorizerKey{}, authorize)
}

// Register adds the aggregated (ADS) and the endpoint (EDS) discovery service to a gRPC
// server. They are served until ctx ends.
func (s *Server) Register(ctx context.Context, to *grpc.Server) {
	mux := &xdscache.MuxCache{
		Classify:      func(r *xdscache.Request) string { return r.GetTypeUrl() },
		ClassifyDelta: func(r *xdscache.DeltaRequest) string { return r.GetTypeUrl() },
		Caches:        map[string]xdscache.Cache{},
	}
	for kind, one := range s.caches {
		mux.Caches[kind] = one
	}
	// A request without names subscribes to nothing, not to everything.
	handlers := xdsserver.NewServer(ctx, mux, s.callbacks(), sotw.DeactivateLegacyWildcard(), sotw.WithLogger(xdsLogger(s.log)))
	discovery.RegisterAggregatedDiscoveryServiceServer(to, handlers)
	endpointservice.RegisterEndpointDiscoveryServiceServer(to, handlers)
}

// callbacks returns what go-control-plane calls for streams and requests.
func (s *Server) callbacks() xdsserver.Callbacks {
	return xdsserver.CallbackFuncs{
		StreamOpenFunc:        func(ctx context.Context, n int64, _ string) error { return s.onStreamOpen(ctx, streamID{number: n}) },
		DeltaStreamOpenFunc:   func(ctx context.Context, n int64, _ string) error { return s.onStreamOpen(ctx, streamID{n, true}) },
		StreamClosedFunc:      func(n int64, _ *configcore.Node) { s.onStreamClosed(streamID{number: n}) },
		DeltaStreamClosedFunc: func(n int64, _ *configcore.Node) { s.onStreamClosed(streamID{n, true}) },
		StreamRequestFunc: func(n int64, r *discovery.DiscoveryRequest) error {
			return s.onRequest(streamID{number: n}, r.GetTypeUrl(), r.GetResourceNames(), r.GetErrorDetail())
		},
		StreamDeltaRequestFunc: func(n int64, r *discovery.DeltaDiscoveryRequest) error {
			return s.onRequest(streamID{n, true}, r.GetTypeUrl(), r.GetResourceNamesSubscribe(), r.GetErrorDetail())
		},
	}
}

func (s *Server) onStreamOpen(ctx context.Context, id streamID) error {
	authorize, _ := ctx.Value(authorizerKey{}).(func(string) error)
	if authorize == nil {
		authorize = func(string) error { return nil }
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams[id] = &stream{subscribed: map[string]bool{}, authorize: authorize}
	return nil
}

func (s *Server) onStreamClosed(id streamID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.streams[id].subscribed {
		s.removeSubscriber(name)
	}
	delete(s.streams, id)
}

// onRequest is called for each request before its response. An error ends the stream
// and is sent to the client.
func (s *Server) onRequest(id streamID, typeURL string, names []string, nack *status.Status) error {
	if s.caches[typeURL] == nil {
		return grpcstatus.Errorf(codes.InvalidArgument, "resources of type %q are not served here", typeURL)
	}
	if nack != nil {
		s.nacks.Add(1)
		s.log.Error("a client has refused what it was told", zap.String("type", typeURL), zap.Strings("names", names), zap.String("reason", nack.GetMessage()))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.streams[id]
	for _, name := range names {
		if st.subscribed[name] {
			continue
		}
		if err := s.subscribe(st, name); err != nil {
			return err
		}
		st.subscribed[name] = true
	}
	return nil
}

// subscribe adds a subscription for a name that is new on a stream. Its error is a gRPC
// status. The caller holds mu.
func (s *Server) subscribe(st *stream, resource string) error {
	name, err := ParseResourceName(resource)
	if err != nil {
		return grpcstatus.Error(codes.InvalidArgument, err.Error())
	}
	if err := st.authorize(name.Cluster); err != nil {
		return err
	}
	if len(st.subscribed) >= maxSubscriptions {
		return grpcstatus.Errorf(codes.ResourceExhausted, "one stream may ask for %d services", maxSubscriptions)
	}
	if err := s.watchCluster(name.Cluster); err != nil {
		s.log.Warn("a client asks for services of a cluster that cannot be followed", zap.String("cluster", name.Cluster), zap.Error(err))
		return grpcstatus.Errorf(codes.NotFound, "there is no cluster %q here", name.Cluster)
	}
	if err := s.addSubscriber(resource, name); err != nil {
		return grpcstatus.Error(codes.Internal, err.Error())
	}
	return nil
}
