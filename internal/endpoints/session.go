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

// streamID is one stream of a client.
type streamID struct {
	number int64
	delta  bool // streams of the two kinds are numbered apart
}

// session is what a client asks for on one stream.
type session struct {
	names   map[string]bool
	allowed func(cluster string) error
}

type accessKey struct{}

// WithAccess is a context whose streams may only ask for services of clusters for
// which allowed returns nil. Its error goes to the client: a gRPC status.
func WithAccess(ctx context.Context, allowed func(cluster string) error) context.Context {
	return context.WithValue(ctx, accessKey{}, allowed)
}

// Register serves the discovery services, the aggregated one and that of endpoints
// alone, to the clients of a gRPC server until ctx ends.
func (s *Server) Register(ctx context.Context, to *grpc.Server) {
	mux := &xdscache.MuxCache{
		Classify:      func(r *xdscache.Request) string { return r.GetTypeUrl() },
		ClassifyDelta: func(r *xdscache.DeltaRequest) string { return r.GetTypeUrl() },
		Caches:        map[string]xdscache.Cache{},
	}
	for kind, one := range s.caches {
		mux.Caches[kind] = one
	}
	// A request without names is for nothing, not for everything.
	handlers := xdsserver.NewServer(ctx, mux, s.callbacks(), sotw.DeactivateLegacyWildcard(), sotw.WithLogger(quiet(s.log)))
	discovery.RegisterAggregatedDiscoveryServiceServer(to, handlers)
	endpointservice.RegisterEndpointDiscoveryServiceServer(to, handlers)
}

func (s *Server) callbacks() xdsserver.Callbacks {
	return xdsserver.CallbackFuncs{
		StreamOpenFunc:        func(ctx context.Context, n int64, _ string) error { return s.open(ctx, streamID{number: n}) },
		DeltaStreamOpenFunc:   func(ctx context.Context, n int64, _ string) error { return s.open(ctx, streamID{n, true}) },
		StreamClosedFunc:      func(n int64, _ *configcore.Node) { s.close(streamID{number: n}) },
		DeltaStreamClosedFunc: func(n int64, _ *configcore.Node) { s.close(streamID{n, true}) },
		StreamRequestFunc: func(n int64, r *discovery.DiscoveryRequest) error {
			return s.asked(streamID{number: n}, r.GetTypeUrl(), r.GetResourceNames(), r.GetErrorDetail())
		},
		StreamDeltaRequestFunc: func(n int64, r *discovery.DeltaDiscoveryRequest) error {
			return s.asked(streamID{n, true}, r.GetTypeUrl(), r.GetResourceNamesSubscribe(), r.GetErrorDetail())
		},
	}
}

func (s *Server) open(ctx context.Context, id streamID) error {
	allowed, _ := ctx.Value(accessKey{}).(func(string) error)
	if allowed == nil {
		allowed = func(string) error { return nil }
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions[id] = &session{names: map[string]bool{}, allowed: allowed}
	return nil
}

func (s *Server) close(id streamID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.sessions[id].names {
		s.leave(name)
	}
	delete(s.sessions, id)
}

// asked is called for each request, before it is answered. An error ends the stream
// and tells the client why.
func (s *Server) asked(id streamID, kind string, names []string, refused *status.Status) error {
	if s.caches[kind] == nil {
		return grpcstatus.Errorf(codes.InvalidArgument, "resources of type %q are not served here", kind)
	}
	if refused != nil {
		s.refusals.Add(1)
		s.log.Error("a client has refused what it was told", zap.String("type", kind), zap.Strings("names", names), zap.String("reason", refused.GetMessage()))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	own := s.sessions[id]
	for _, name := range names {
		if own.names[name] {
			continue
		}
		if err := s.admit(own, name); err != nil {
			return err
		}
		own.names[name] = true
	}
	return nil
}

// admit takes in a name that a client has not asked for before. The caller holds mu.
func (s *Server) admit(own *session, text string) error {
	name, err := ParseName(text)
	if err != nil {
		return grpcstatus.Error(codes.InvalidArgument, err.Error())
	}
	if err := own.allowed(name.Cluster); err != nil {
		return err
	}
	if len(own.names) >= maxNames {
		return grpcstatus.Errorf(codes.ResourceExhausted, "one stream may ask for %d services", maxNames)
	}
	if err := s.follow(name.Cluster); err != nil {
		s.log.Warn("a client asks for services of a cluster that cannot be followed", zap.String("cluster", name.Cluster), zap.Error(err))
		return grpcstatus.Errorf(codes.NotFound, "there is no cluster %q here", name.Cluster)
	}
	if err := s.want(text, name); err != nil {
		return grpcstatus.Error(codes.Internal, err.Error())
	}
	return nil
}
