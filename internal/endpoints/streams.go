package endpoints

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	xdscache "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	xdsdelta "github.com/envoyproxy/go-control-plane/pkg/server/delta/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/sotw/v3"
	xdsstream "github.com/envoyproxy/go-control-plane/pkg/server/stream/v3"
	"go.uber.org/zap"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
)

// wildcard is the name by which a client asks for all resources.
const wildcard = "*"

type authorizerKey struct{}

// WithAuthorizer returns a context for a stream that may only request services of the
// clusters for which authorize returns nil. Its error, a gRPC status, is told to the
// client beside the name that was asked for.
func WithAuthorizer(ctx context.Context, authorize func(cluster string) error) context.Context {
	return context.WithValue(ctx, authorizerKey{}, authorize)
}

// services are the gRPC services of a Server.
type services struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	endpointservice.UnimplementedEndpointDiscoveryServiceServer
	server *Server
	ctx    context.Context // ends all streams
}

// Register adds the aggregated (ADS) and the endpoint (EDS) discovery service to a gRPC
// server. They are served until ctx ends.
func (s *Server) Register(ctx context.Context, to *grpc.Server) {
	all := &services{server: s, ctx: ctx}
	discovery.RegisterAggregatedDiscoveryServiceServer(to, all)
	endpointservice.RegisterEndpointDiscoveryServiceServer(to, all)
}

// StreamAggregatedResources implements AggregatedDiscoveryServiceServer.
func (a *services) StreamAggregatedResources(from discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return a.serveSotW(from, resource.AnyType)
}

// DeltaAggregatedResources implements AggregatedDiscoveryServiceServer.
func (a *services) DeltaAggregatedResources(from discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return a.serveDelta(from, resource.AnyType)
}

// StreamEndpoints implements EndpointDiscoveryServiceServer.
func (a *services) StreamEndpoints(from endpointservice.EndpointDiscoveryService_StreamEndpointsServer) error {
	return a.serveSotW(from, resource.EndpointType)
}

// DeltaEndpoints implements EndpointDiscoveryServiceServer.
func (a *services) DeltaEndpoints(from endpointservice.EndpointDiscoveryService_DeltaEndpointsServer) error {
	return a.serveDelta(from, resource.EndpointType)
}

// serveSotW serves a state-of-the-world stream. go-control-plane does not say to a cache
// which stream it answers, so each stream has a server of its own, which costs nothing.
func (a *services) serveSotW(from xdsstream.Stream, typeURL string) error {
	ctx, cancel := a.lifetime(from.Context())
	defer cancel()
	st := a.server.openStream(ctx)
	defer a.server.closeStream(st)
	// A request without names subscribes to nothing, not to everything.
	return sotw.NewServer(ctx, st, nil, sotw.DeactivateLegacyWildcard(), sotw.WithLogger(xdsLogger(a.server.log))).StreamHandler(from, typeURL)
}

// serveDelta serves a delta stream.
func (a *services) serveDelta(from xdsstream.DeltaStream, typeURL string) error {
	ctx, cancel := a.lifetime(from.Context())
	defer cancel()
	st := a.server.openStream(ctx)
	defer a.server.closeStream(st)
	return xdsdelta.NewServer(ctx, st, nil, xdsdelta.DeactivateLegacyWildcard(), xdsdelta.WithLogger(xdsLogger(a.server.log))).DeltaStreamHandler(from, typeURL)
}

// lifetime returns the context of a stream: it ends with that of the call, with the server's,
// and when the stream is as old as it may be.
func (a *services) lifetime(call context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(call)
	stops := []func() bool{context.AfterFunc(a.ctx, cancel)}
	if oldest := a.server.opts.MaxStreamAge; oldest > 0 {
		stops = append(stops, time.AfterFunc(streamAge(oldest, rand.Float64()), cancel).Stop) // #nosec G404 -- it spreads load
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel()
	}
}

// streamAge returns the age at which a stream ends: 75 to 100 % of the greatest, by a random
// number in [0, 1). So clients that have come at once, as after a roll of the gateways, do
// not come back at once, and spread over all that there are by then.
func streamAge(oldest time.Duration, random float64) time.Duration {
	return oldest - time.Duration(random*float64(oldest)/4)
}

// stream is what one stream asks for and waits for. It is the ConfigWatcher of
// go-control-plane for that stream. mu of its server guards it.
type stream struct {
	server     *Server
	authorize  func(cluster string) error
	asked      map[string][]string   // sorted names by type
	subscribed map[string]bool       // names whose service it is subscribed to
	refused    map[string]error      // the other names, and why: a gRPC status
	watches    map[string]*openWatch // by type
}

var _ xdscache.ConfigWatcher = (*stream)(nil)

// openWatch is a request that waits for something to tell.
type openWatch struct {
	names []string
	told  map[string]string // version or absent by name
	send  func(answer)      // called at most once; does not block
}

func (s *Server) openStream(ctx context.Context) *stream {
	authorize, _ := ctx.Value(authorizerKey{}).(func(string) error)
	if authorize == nil {
		authorize = func(string) error { return nil }
	}
	st := &stream{
		server: s, authorize: authorize,
		asked: map[string][]string{}, subscribed: map[string]bool{}, refused: map[string]error{}, watches: map[string]*openWatch{},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams[st] = true
	return st
}

func (s *Server) closeStream(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range st.subscribed {
		s.unsubscribe(st, name)
	}
	delete(s.streams, st)
}

// CreateWatch implements cache.ConfigWatcher.
func (st *stream) CreateWatch(r *xdscache.Request, sub xdscache.Subscription, to chan xdscache.Response) (func(), error) {
	st.server.recordNACK(r.GetTypeUrl(), r.GetResourceNames(), r.GetErrorDetail())
	return st.open(r.GetTypeUrl(), &openWatch{
		names: namesOf(sub), told: sub.ReturnedResources(), send: func(a answer) { to <- st.sotwResponse(r, a) },
	}), nil
}

// CreateDeltaWatch implements cache.ConfigWatcher.
func (st *stream) CreateDeltaWatch(r *xdscache.DeltaRequest, sub xdscache.Subscription, to chan xdscache.DeltaResponse) (func(), error) {
	st.server.recordNACK(r.GetTypeUrl(), r.GetResourceNamesSubscribe(), r.GetErrorDetail())
	told := sub.ReturnedResources()
	if st.hasAsked(r.GetTypeUrl()) { // to subscribe again is to ask for it again; only the first request says what a client has
		told = maps.Clone(told)
		for _, name := range r.GetResourceNamesSubscribe() {
			delete(told, name)
		}
	}
	return st.open(r.GetTypeUrl(), &openWatch{
		names: namesOf(sub), told: told, send: func(a answer) { to <- st.deltaResponse(r, a) },
	}), nil
}

// namesOf returns the names of a subscription, sorted.
func namesOf(sub xdscache.Subscription) []string {
	names := slices.Collect(maps.Keys(sub.SubscribedResources()))
	if sub.IsWildcard() {
		names = append(names, wildcard)
	}
	slices.Sort(names)
	return names
}

// recordNACK counts and logs a response that a client has rejected; nack is nil for others.
func (s *Server) recordNACK(typeURL string, names []string, nack *status.Status) {
	if nack == nil {
		return
	}
	s.nacks.Add(1)
	s.log.Error("a client has refused what it was told", zap.String("type", typeURL), zap.Strings("names", names), zap.String("reason", nack.GetMessage()))
}

// hasAsked reports whether there was a request for a type before.
func (st *stream) hasAsked(typeURL string) bool {
	st.server.mu.Lock()
	defer st.server.mu.Unlock()
	_, asked := st.asked[typeURL]
	return asked
}

// open subscribes to the names of a watch, unsubscribes from those that the type had
// before, and answers at once when there is something to tell, otherwise later unless the
// watch is cancelled. A first request for nothing is answered with nothing.
func (st *stream) open(typeURL string, w *openWatch) (cancel func()) {
	st.server.mu.Lock()
	defer st.server.mu.Unlock()
	_, asked := st.asked[typeURL]
	st.setAsked(typeURL, w.names)
	if !asked && len(w.names) == 0 {
		w.send(answer{})
		return nil
	}
	st.watches[typeURL] = w
	st.respond(typeURL)
	return func() {
		st.server.mu.Lock()
		defer st.server.mu.Unlock()
		if st.watches[typeURL] == w {
			delete(st.watches, typeURL)
		}
	}
}

// respond answers the watch of a type, if one is open and there is something to tell.
// The caller holds mu.
func (st *stream) respond(typeURL string) {
	w := st.watches[typeURL]
	if w == nil {
		return
	}
	a := newAnswer(w.names, w.told, func(name string) (*versioned, error) { return st.find(typeURL, name) })
	if !a.isEmpty() {
		delete(st.watches, typeURL)
		w.send(a)
	}
}

// find returns the resource of a name, or an error (a gRPC status) when there is none for
// this stream, or neither when it is not known yet. The caller holds mu.
func (st *stream) find(typeURL, name string) (*versioned, error) {
	if !slices.Contains(resourceTypes, typeURL) {
		return nil, grpcstatus.Errorf(codes.InvalidArgument, "resources of type %q are not served here", typeURL)
	}
	if err := st.refused[name]; err != nil {
		return nil, err
	}
	return st.server.subscriptions[name].resources[typeURL], nil
}

// setAsked makes names those that are asked for of a type. The caller holds mu.
func (st *stream) setAsked(typeURL string, names []string) {
	before, asked := st.asked[typeURL]
	if asked && slices.Equal(before, names) {
		return
	}
	st.asked[typeURL] = names
	wanted := map[string]bool{}
	for _, kind := range resourceTypes {
		for _, name := range st.asked[kind] {
			wanted[name] = true
		}
	}
	maps.DeleteFunc(st.refused, func(name string, _ error) bool { return !wanted[name] })
	for name := range st.subscribed {
		if !wanted[name] {
			st.server.unsubscribe(st, name)
		}
	}
	for name := range wanted {
		st.subscribe(name)
	}
}

// subscribe subscribes to a service unless it is, or records why that is refused. The
// caller holds mu.
func (st *stream) subscribe(name string) {
	if st.subscribed[name] || st.refused[name] != nil {
		return
	}
	if err := st.server.subscribe(st, name); err != nil {
		st.server.log.Info("a name is refused", zap.String("name", name), zap.Error(err))
		st.refused[name] = err
	}
}
