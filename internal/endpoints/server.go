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

// maxSubscriptions is how many services one stream may request: the bound of the memory
// that it takes.
const maxSubscriptions = 10_000

// Options of a server.
type Options struct {
	// Client returns a client for a cluster's API server. Its error is logged and not sent
	// to xDS clients.
	Client func(ctx context.Context, cluster string) (kubernetes.Interface, error)
	Log    *zap.Logger
}

// Server is the xDS server. It watches a cluster from the first request for one of its
// services on, and keeps resources of a service only while a stream is subscribed to it.
type Server struct {
	opts   Options
	log    *zap.Logger
	caches map[string]*xdscache.LinearCache // by type of resource

	watchCtx    context.Context // ends with Close
	stopWatches context.CancelFunc
	watchers    sync.WaitGroup

	mu            sync.Mutex
	clusters      map[string]*clusterWatcher // by cluster
	subscriptions map[string]*subscription   // by name of the resources
	streams       map[streamID]*stream

	nacks   atomic.Int64 // responses that clients rejected
	changes atomic.Int64 // of endpoints
}

// subscription is a service that at least one stream is subscribed to.
type subscription struct {
	name        ResourceName
	subscribers int
	sent        *configendpoint.ClusterLoadAssignment // what they were told; nil = nothing yet
}

// NewServer returns a server that watches no cluster yet. Close ends its watches.
func NewServer(o Options) *Server {
	s := &Server{
		opts: o, log: o.Log, caches: map[string]*xdscache.LinearCache{},
		clusters: map[string]*clusterWatcher{}, subscriptions: map[string]*subscription{}, streams: map[streamID]*stream{},
	}
	// Versions are unique to this process: a client that was connected to another gateway
	// gets all its resources once.
	prefix := fmt.Sprintf("%x-", time.Now().UnixNano())
	for _, kind := range resourceTypes {
		s.caches[kind] = xdscache.NewLinearCache(kind, xdscache.WithVersionPrefix(prefix), xdscache.WithLogger(xdsLogger(s.log)))
	}
	s.watchCtx, s.stopWatches = context.WithCancel(context.Background())
	return s
}

// xdsLogger returns a logger for go-control-plane, whose info messages (one for every
// request) are logged at debug level.
func xdsLogger(l *zap.Logger) xdslog.Logger {
	to := l.WithOptions(zap.AddCallerSkip(1)).Sugar()
	return xdslog.LoggerFuncs{DebugFunc: to.Debugf, InfoFunc: to.Debugf, WarnFunc: to.Warnf, ErrorFunc: to.Errorf}
}

// Close ends the watches of all clusters and waits for that. The resources that clients
// have stay valid.
func (s *Server) Close() {
	s.stopWatches()
	s.watchers.Wait()
}

// watchCluster starts watching a cluster unless it is watched already. The caller holds
// mu.
func (s *Server) watchCluster(cluster string) error {
	if s.clusters[cluster] != nil {
		return nil
	}
	client, err := s.opts.Client(s.watchCtx, cluster)
	if err != nil {
		return err
	}
	watcher, log := newClusterWatcher(client), s.log.With(zap.String("cluster", cluster))
	s.clusters[cluster] = watcher
	s.watchers.Go(func() {
		watcher.run(s.watchCtx, log, func(services []string) { s.publish(cluster, services) })
	})
	return nil
}

// Stats are counts of what a server does.
type Stats struct {
	Clusters int   // watched now
	Services int   // that streams are subscribed to now
	Streams  int   // open now
	Changes  int64 // of the endpoints of services with subscribers, since the start
	NACKs    int64 // responses that a client rejected, since the start: there should be none
}

// Stats returns the counts.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{
		Clusters: len(s.clusters), Services: len(s.subscriptions), Streams: len(s.streams),
		Changes: s.changes.Load(), NACKs: s.nacks.Load(),
	}
}

// publish updates the endpoints of services of a cluster (namespace/name; nil = all) that
// have subscribers.
func (s *Server) publish(cluster string, services []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.updateEndpoints(func(w *subscription) bool {
		return w.name.Cluster == cluster && (services == nil || slices.Contains(services, w.name.Namespace+"/"+w.name.Service))
	})
}

// updateEndpoints computes the endpoints of the subscriptions for which match returns true
// and puts those that have changed into the cache. The caller holds mu.
func (s *Server) updateEndpoints(match func(*subscription) bool) {
	changed := map[string]types.Resource{}
	for text, w := range s.subscriptions {
		watcher := s.clusters[w.name.Cluster]
		if !match(w) || watcher == nil || !watcher.hasSynced() {
			continue
		}
		protocol, endpoints := watcher.endpointsOf(w.name)
		if assignment := loadAssignment(text, protocol, endpoints); !proto.Equal(assignment, w.sent) {
			w.sent, changed[text] = assignment, assignment
			s.changes.Add(1)
		}
	}
	s.updateCache(resource.EndpointType, changed, nil)
}

// updateCache changes resources of one type; subscribed streams get the change. The
// caller holds mu.
func (s *Server) updateCache(typeURL string, changed map[string]types.Resource, removed []string) {
	if len(changed)+len(removed) == 0 {
		return
	}
	if err := s.caches[typeURL].UpdateResources(changed, removed); err != nil {
		s.log.Error("clients were not told", zap.String("type", typeURL), zap.Error(err))
	}
}

// addSubscriber adds a stream to a service's subscribers and, for the first, creates the
// service's resources. The caller holds mu.
func (s *Server) addSubscriber(text string, name ResourceName) error {
	if w := s.subscriptions[text]; w != nil {
		w.subscribers++
		return nil
	}
	resources, err := routingResources(text)
	if err != nil {
		return err
	}
	w := &subscription{name: name, subscribers: 1}
	s.subscriptions[text] = w
	for kind, one := range resources {
		s.updateCache(kind, map[string]types.Resource{text: one}, nil)
	}
	s.updateEndpoints(func(other *subscription) bool { return other == w })
	return nil
}

// removeSubscriber removes a stream from a service's subscribers and, after the last,
// the service's resources. The caller holds mu.
func (s *Server) removeSubscriber(text string) {
	w := s.subscriptions[text]
	if w.subscribers--; w.subscribers > 0 {
		return
	}
	delete(s.subscriptions, text)
	for _, kind := range resourceTypes {
		s.updateCache(kind, nil, []string{text})
	}
}
