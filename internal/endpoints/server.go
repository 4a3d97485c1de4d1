package endpoints

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	xdslog "github.com/envoyproxy/go-control-plane/pkg/log"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"k8s.io/client-go/kubernetes"
)

// maxSubscriptions is how many services one stream may request: the bound of the memory
// that it takes.
const maxSubscriptions = 10_000

// Options of a server.
type Options struct {
	// Client returns the client for a cluster's API server: another one than before when the
	// way there has changed. It is asked again and again. Its error is logged and not sent to
	// xDS clients.
	Client func(ctx context.Context, cluster string) (kubernetes.Interface, error)
	Log    *zap.Logger
	// MaxStreamAge is how long a stream may live, 0 = for ever. Each ends after 75 to 100 %
	// of it; its client keeps what it was told and opens another one.
	MaxStreamAge time.Duration
}

// Server is the xDS server. It watches a cluster from the first request for one of its
// services on, and keeps resources of a service only while a stream is subscribed to it.
type Server struct {
	opts    Options
	log     *zap.Logger
	process string // prefix of versions: they are this process's own

	watchCtx    context.Context // ends with Close
	stopWatches context.CancelFunc
	watchers    sync.WaitGroup

	mu            sync.Mutex
	version       int64                    // raised with each change of a resource
	clusters      map[string]*follower     // by cluster
	subscriptions map[string]*subscription // by name of the resources
	streams       map[*stream]bool

	nacks   atomic.Int64 // responses that clients rejected
	changes atomic.Int64 // of endpoints
}

// subscription is a service that at least one stream is subscribed to.
type subscription struct {
	name      ResourceName
	streams   map[*stream]bool
	resources map[string]*versioned // by type; without endpoints until they are known
}

// NewServer returns a server that watches no cluster yet. Close ends its watches.
func NewServer(o Options) *Server {
	s := &Server{
		opts: o, log: o.Log, process: fmt.Sprintf("%x-", time.Now().UnixNano()),
		clusters: map[string]*follower{}, subscriptions: map[string]*subscription{}, streams: map[*stream]bool{},
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

// updateEndpoints computes the endpoints of the subscriptions for which match returns true
// and tells those that have changed. The caller holds mu.
func (s *Server) updateEndpoints(match func(*subscription) bool) {
	concerned := map[*stream]bool{}
	for text, one := range s.subscriptions {
		if match(one) && s.updateAssignment(text, one) {
			maps.Copy(concerned, one.streams)
		}
	}
	for st := range concerned {
		st.respond(resource.EndpointType)
	}
}

// updateAssignment computes the endpoints of a service, if they are known, and reports
// whether they have changed. The caller holds mu.
func (s *Server) updateAssignment(text string, one *subscription) (changed bool) {
	followed := s.clusters[one.name.Cluster]
	if followed == nil || !followed.current.hasSynced() {
		return false
	}
	protocol, endpoints := followed.current.endpointsOf(one.name)
	assignment, err := newVersioned(loadAssignment(text, protocol, endpoints))
	if err != nil {
		s.log.Error("clients were not told", zap.String("name", text), zap.Error(err))
		return false
	}
	if before := one.resources[resource.EndpointType]; before != nil && before.version == assignment.version {
		return false
	}
	one.resources[resource.EndpointType] = assignment
	s.version++
	s.changes.Add(1)
	return true
}

// versionInfo returns the version of all resources. The caller holds mu.
func (s *Server) versionInfo() string { return s.process + strconv.FormatInt(s.version, 10) }

// subscribe subscribes a stream to the service of a name. Its error is a gRPC status. The
// caller holds mu.
func (s *Server) subscribe(st *stream, text string) error {
	name, err := ParseResourceName(text)
	if err != nil {
		return grpcstatus.Error(codes.InvalidArgument, err.Error())
	}
	if err := st.authorize(name.Cluster); err != nil {
		return err
	}
	if len(st.subscribed) >= maxSubscriptions {
		return grpcstatus.Errorf(codes.ResourceExhausted, "one stream may ask for %d services", maxSubscriptions)
	}
	if err := s.follow(name.Cluster); err != nil {
		s.log.Warn("a client asks for services of a cluster that cannot be followed", zap.String("cluster", name.Cluster), zap.Error(err))
		return grpcstatus.Errorf(codes.NotFound, "there is no cluster %q here", name.Cluster)
	}
	one, err := s.subscriptionOf(text, name)
	if err != nil {
		return grpcstatus.Error(codes.Internal, err.Error())
	}
	one.streams[st], st.subscribed[text] = true, true
	return nil
}

// subscriptionOf returns the subscription of a name, with its resources, and makes it if
// there is none. The caller holds mu.
func (s *Server) subscriptionOf(text string, name ResourceName) (*subscription, error) {
	if one := s.subscriptions[text]; one != nil {
		return one, nil
	}
	one := &subscription{name: name, streams: map[*stream]bool{}, resources: map[string]*versioned{}}
	routing, err := routingResources(text)
	if err != nil {
		return nil, err
	}
	for kind, r := range routing {
		if one.resources[kind], err = newVersioned(r); err != nil {
			return nil, err
		}
	}
	s.subscriptions[text] = one
	s.version++
	s.updateAssignment(text, one)
	return one, nil
}

// unsubscribe takes a stream from the subscribers of a service and, after the last, drops
// the service's resources. The caller holds mu.
func (s *Server) unsubscribe(st *stream, text string) {
	one := s.subscriptions[text]
	delete(st.subscribed, text)
	delete(one.streams, st)
	if len(one.streams) == 0 {
		delete(s.subscriptions, text)
	}
}
