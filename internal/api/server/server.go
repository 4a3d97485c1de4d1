// Package server serves the gateway's HTTP API. The routes are in routes.go, their
// handlers in handle_*.go, what a request passes before in middleware.go, and what
// happens while the server is cordoned in lifecycle.go.
package server

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"ebb/internal/api/auth"
	"ebb/internal/api/wire"
	"ebb/internal/forecast"
	"ebb/internal/ops"
	"ebb/internal/wait"
)

const (
	// refreshInterval is the interval between updates of the gauges of open operations.
	refreshInterval = 15 * time.Second
	// maxOpenOperations limits how many open operations are counted.
	maxOpenOperations = 10_000

	headerTimeout  = 10 * time.Second
	idleTimeout    = 2 * time.Minute // longer than proxies keep connections for reuse
	maxHeaderBytes = 64 << 10        // a token with many groups has some thousand
)

// Operations are the operations that a server gives access to.
type Operations interface {
	ops.Client
	// Request returns what an operation was asked to do, as the engine has it; no
	// worker is asked. For an unknown ID the error is an *ops.UnknownError.
	Request(ctx context.Context, id string) (ops.Request, error)
}

// Clusters are the clusters that a server tells about.
type Clusters interface {
	forecast.Clusters
	// Among is List of those clusters that which returns true for; the others are not
	// asked for anything.
	Among(ctx context.Context, which func(name string) bool) ([]forecast.Overview, error)
}

// Options configure a server. All but the numbers, Collectors and Followed are required.
type Options struct {
	Operations Operations
	Clusters   Clusters
	Auth       auth.Authenticator
	Log        *zap.Logger
	Version    string

	Grace      time.Duration // from the signal to the end of Run; default 60s
	LameDuck   time.Duration // from the signal, for which the listener stays open at least; at most what of Grace is for requests
	PerSecond  int           // requests of one principal per second; default 50
	Burst      int           // of requests of one principal; default 300
	MaxStreams int           // open event streams and waits; default 1000

	MaxStreamsPerPrincipal int // those of one principal; default half of MaxStreams

	Collectors []prometheus.Collector // further metrics of the process, for /metrics

	Followed func() []wire.FollowedCluster // the clusters whose endpoints the process serves; nil = it serves none
}

// Server is the gateway's HTTP API. It keeps no state that another gateway would need.
type Server struct {
	options            Options
	log                *zap.Logger
	router             *router
	lifecycle          *lifecycle
	metrics            *metrics
	principalLimiter   *auth.Limiter // limits requests, by principal
	authFailureLimiter *auth.Limiter // limits failed authentications, by IP address
	watches            *watches
	plans              *slots
	recheckInterval    time.Duration // how often the tokens of open streams are checked again
}

// New returns a server that is Serving. Close ends its background work.
func New(o Options) *Server {
	if o.Grace <= 0 {
		o.Grace = time.Minute
	}
	if o.PerSecond <= 0 {
		o.PerSecond = 50
	}
	if o.Burst <= 0 {
		o.Burst = 300
	}
	if o.MaxStreams <= 0 {
		o.MaxStreams = 1000
	}
	if o.MaxStreamsPerPrincipal <= 0 {
		o.MaxStreamsPerPrincipal = max(1, o.MaxStreams/2)
	}
	if o.Followed == nil {
		o.Followed = func() []wire.FollowedCluster { return nil }
	}
	s := &Server{
		options: o, log: o.Log, router: newRouter(routes()),
		principalLimiter:   auth.NewLimiter(o.PerSecond, o.Burst),
		authFailureLimiter: auth.NewLimiter(auth.FailuresPerSecond, auth.FailuresBurst),
		watches:            newWatches(o.Operations),
		plans:              newSlots(),
		recheckInterval:    auth.RecheckInterval,
	}
	ready := make(chan struct{})
	s.lifecycle = newLifecycle(func(ctx context.Context) {
		<-ready // the metrics are made after the lifecycle
		s.refreshOpenOperations(ctx)
	})
	s.metrics = newMetrics(s.lifecycle, o.Version)
	s.metrics.registry.MustRegister(o.Collectors...)
	close(ready)
	return s
}

// refreshOpenOperations updates the gauges of open operations until ctx ends.
func (s *Server) refreshOpenOperations(ctx context.Context) {
	_ = wait.Poll(ctx, refreshInterval, func() (done bool, _ error) { // its error is that of ctx
		open, err := s.options.Operations.List(ctx, ops.Filter{Open: true, Limit: maxOpenOperations})
		switch {
		case ctx.Err() != nil:
			return true, nil
		case err != nil:
			s.metrics.refreshes.WithLabelValues("failed").Inc()
			s.log.Debug("the open operations cannot be counted now", zap.Error(err))
		default:
			s.metrics.refreshes.WithLabelValues("done").Inc()
			s.metrics.setOpenOperations(open)
		}
		return false, nil
	})
}

// Run serves on l until ctx ends, then drains and returns within the grace period. The
// error is one of the listener.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	web := &http.Server{
		Handler: s, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: zap.NewStdLog(s.log.Named("http")),
	}
	failed := make(chan error, 1)
	go func() { failed <- web.Serve(l) }()
	select {
	case err := <-failed:
		s.Close()
		return err
	case <-ctx.Done():
		return s.drain(web, time.Now())
	}
}

// Leave has the server serve on, say that it is not ready, and close connections after each
// answer: callers go to another server by themselves before this one is stopped.
func (s *Server) Leave() {
	if s.lifecycle.Leave() {
		s.log.Info("leaving: everything is served, and connections are closed after each answer")
	}
}

// drain shuts the server down after a signal: it cordons it, waits for requests in
// flight, cancels those that are left, and closes the connections. Until the lame duck's
// time is over the listener stays open, since proxies send new requests for a moment:
// they are answered that another gateway will do it, where a refused connection would
// say nothing.
func (s *Server) drain(web *http.Server, signal time.Time) error {
	at := drainDeadlinesFor(signal, s.options.Grace)
	if s.lifecycle.status().State == wire.Leaving {
		web.SetKeepAlivesEnabled(false) // closes connections that nobody has used since it leaves
	}
	s.lifecycle.Cordon(true)
	now := s.lifecycle.status()
	s.log.Info("cordoned: new requests are sent away, what runs is waited for",
		zap.Int("running", now.Running), zap.Int("streams", now.Streams), zap.Duration("grace", s.options.Grace))
	if !waitUntil(s.lifecycle.Drained(), at.requests) {
		s.log.Warn("the grace is over: what still runs is ended with the mark that it may be sent again", zap.Int("running", s.lifecycle.status().Running))
		s.lifecycle.CancelInFlight()
		waitUntil(s.lifecycle.Drained(), at.responses)
	}
	waitForTime(earliest(signal.Add(s.options.LameDuck), at.requests))
	s.Close()
	s.log.Info("terminating: the listeners are closed")
	if time.Now().Before(at.requests) && shutdown(web, at.requests) == nil {
		return nil
	}
	s.lifecycle.CancelInFlight()
	if err := shutdown(web, at.connections); err != nil {
		s.log.Warn("connections that would not end are cut", zap.Error(err))
		return web.Close()
	}
	return nil
}

// waitUntil waits for done until the deadline, and reports whether it was closed.
func waitUntil(done <-chan struct{}, deadline time.Time) bool {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// waitForTime returns at that time.
func waitForTime(at time.Time) { waitUntil(nil, at) }

// earliest returns the earlier of two times.
func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// shutdown closes the listeners and waits for the connections until the deadline.
func shutdown(web *http.Server, deadline time.Time) error {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	return web.Shutdown(ctx)
}

// Close makes the server Terminating and waits for the end of the background work.
func (s *Server) Close() {
	s.lifecycle.Terminate()
	s.lifecycle.backgroundDone.Wait()
}
