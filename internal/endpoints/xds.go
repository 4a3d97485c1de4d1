package endpoints

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	configendpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	xdscache "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	xdslog "github.com/envoyproxy/go-control-plane/pkg/log"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
	"k8s.io/client-go/kubernetes"
)

// maxNames bounds the services that one client may ask for, and so the memory that it
// costs.
const maxNames = 10_000

// Options of a server.
type Options struct {
	// Client is the API of a cluster. Its error, that there is none of that name or that
	// it cannot be talked to, is logged and not told to clients.
	Client func(ctx context.Context, cluster string) (kubernetes.Interface, error)
	Log    *zap.Logger
}

// Server tells clients about the endpoints of services. A cluster is followed from the
// first time that somebody asks for one of its services; a service costs something
// only while somebody asks for it.
type Server struct {
	o      Options
	log    *zap.Logger
	caches map[string]*xdscache.LinearCache // by type of resource

	following context.Context // ends with Close
	end       context.CancelFunc
	going     sync.WaitGroup

	mu       sync.Mutex
	sources  map[string]*source // by cluster
	wanted   map[string]*wanted // by name of the resources
	sessions map[streamID]*session

	refusals atomic.Int64 // updates that clients did not accept (NACK)
	changes  atomic.Int64 // of what clients are told
}

// wanted is a service that somebody asks for.
type wanted struct {
	name  Name
	users int
	last  *configendpoint.ClusterLoadAssignment // what they were told; nil = nothing yet
}

// NewServer is a server that follows no cluster yet. Close ends what it does.
func NewServer(o Options) *Server {
	s := &Server{
		o: o, log: o.Log, caches: map[string]*xdscache.LinearCache{},
		sources: map[string]*source{}, wanted: map[string]*wanted{}, sessions: map[streamID]*session{},
	}
	// A version is this process's own: a client that comes from another gateway is told
	// everything once.
	prefix := fmt.Sprintf("%x-", time.Now().UnixNano())
	for _, kind := range served {
		s.caches[kind] = xdscache.NewLinearCache(kind, xdscache.WithVersionPrefix(prefix), xdscache.WithLogger(quiet(s.log)))
	}
	s.following, s.end = context.WithCancel(context.Background())
	return s
}

// quiet is a logger for the library, to which every request is worth a line.
func quiet(l *zap.Logger) xdslog.Logger {
	to := l.WithOptions(zap.AddCallerSkip(1)).Sugar()
	return xdslog.LoggerFuncs{DebugFunc: to.Debugf, InfoFunc: to.Debugf, WarnFunc: to.Warnf, ErrorFunc: to.Errorf}
}

// Close ends the watches of all clusters. What clients were told stays.
func (s *Server) Close() {
	s.end()
	s.going.Wait()
}

// follow makes sure that a cluster is followed. The caller holds mu.
func (s *Server) follow(cluster string) error {
	if s.sources[cluster] != nil {
		return nil
	}
	api, err := s.o.Client(s.following, cluster)
	if err != nil {
		return err
	}
	from, log := newSource(api), s.log.With(zap.String("cluster", cluster))
	s.sources[cluster] = from
	s.going.Go(func() {
		from.run(s.following, log, func(services []string) { s.publish(cluster, services) })
	})
	return nil
}

// Stats are what a server is doing.
type Stats struct {
	Clusters int   // that are followed
	Services int   // that clients ask for now
	Streams  int   // of clients, now
	Changes  int64 // of the endpoints of a service that somebody asked for, so far
	Refusals int64 // updates that a client did not accept, so far: there should be none
}

// Stats are what the server is doing now.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{
		Clusters: len(s.sources), Services: len(s.wanted), Streams: len(s.sessions),
		Changes: s.changes.Load(), Refusals: s.refusals.Load(),
	}
}

// publish tells about those services of a cluster that somebody asks for, nil = all.
func (s *Server) publish(cluster string, services []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tell(func(w *wanted) bool {
		return w.name.Cluster == cluster && (services == nil || slices.Contains(services, w.name.Namespace+"/"+w.name.Service))
	})
}

// tell tells what is new about the services that are chosen. The caller holds mu.
func (s *Server) tell(chosen func(*wanted) bool) {
	news := map[string]types.Resource{}
	for text, w := range s.wanted {
		from := s.sources[w.name.Cluster]
		if !chosen(w) || from == nil || !from.known() {
			continue
		}
		transport, endpoints := from.decide(w.name)
		if now := assignment(text, transport, endpoints); !proto.Equal(now, w.last) {
			w.last, news[text] = now, now
			s.changes.Add(1)
		}
	}
	s.update(resource.EndpointType, news, nil)
}

// update changes what clients are told. The caller holds mu.
func (s *Server) update(kind string, news map[string]types.Resource, gone []string) {
	if len(news)+len(gone) == 0 {
		return
	}
	if err := s.caches[kind].UpdateResources(news, gone); err != nil {
		s.log.Error("clients were not told", zap.String("type", kind), zap.Error(err))
	}
}

// want takes a service in. The caller holds mu.
func (s *Server) want(text string, name Name) error {
	if w := s.wanted[text]; w != nil {
		w.users++
		return nil
	}
	resources, err := way(text)
	if err != nil {
		return err
	}
	w := &wanted{name: name, users: 1}
	s.wanted[text] = w
	for kind, one := range resources {
		s.update(kind, map[string]types.Resource{text: one}, nil)
	}
	s.tell(func(other *wanted) bool { return other == w })
	return nil
}

// leave drops a service that nobody asks for any more. The caller holds mu.
func (s *Server) leave(text string) {
	w := s.wanted[text]
	if w.users--; w.users > 0 {
		return
	}
	delete(s.wanted, text)
	for _, kind := range served {
		s.update(kind, nil, []string{text})
	}
}
