package api

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"ebb/internal/forecast"
	"ebb/internal/ops"
)

const (
	// refreshInterval is how old the gauges of open operations may be.
	refreshInterval = 15 * time.Second
	// refreshLimit is how many open operations are counted at most.
	refreshLimit = 10_000

	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute // longer than proxies keep a connection for reuse
	maxHeader     = 64 << 10        // bytes; a token with many groups has some thousands

	// Failures of authentication that one address may cause: a second, and at once.
	strangersPerSecond = 5
	strangersBurst     = 20
)

// Operations are what a server serves.
type Operations interface {
	ops.Client
	// Request is what an operation was asked to do; it asks the engine and nobody
	// else. The error of an unknown ID is an *ops.UnknownError.
	Request(ctx context.Context, id string) (ops.Request, error)
}

// Options are what a server needs; all but the numbers are required.
type Options struct {
	Operations Operations
	Clusters   forecast.Clusters
	Auth       Authenticator
	Log        *zap.Logger
	Version    string

	Grace      time.Duration // from the signal to the end of the process; default 60s
	PerSecond  int           // requests of one principal; default 50
	Burst      int           // of them at once; default 300
	MaxStreams int           // streams and waits at once; default 1000

	Collectors []prometheus.Collector // of what else runs in the process, for /metrics
}

// Server is the gateway's HTTP API. It keeps nothing that another replica would
// have to know.
type Server struct {
	o         Options
	log       *zap.Logger
	table     *table
	life      *Lifecycle
	metrics   *metrics
	callers   *limiters // by principal
	strangers *limiters // by address, of those that have no valid token
}

// NewServer is a server that is Serving; Close ends its internal work.
func NewServer(o Options) *Server {
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
	s := &Server{
		o: o, log: o.Log, table: newTable(routes()),
		callers:   newLimiters(o.PerSecond, o.Burst),
		strangers: newLimiters(strangersPerSecond, strangersBurst),
	}
	ready := make(chan struct{})
	s.life = newLifecycle(func(ctx context.Context) {
		<-ready // the metrics need the lifecycle first
		s.refresh(ctx)
	})
	s.metrics = newMetrics(s.life, o.Version)
	s.metrics.registry.MustRegister(o.Collectors...)
	close(ready)
	return s
}

// refresh is the internal work: it keeps the gauges of open operations true.
func (s *Server) refresh(ctx context.Context) {
	ticker := time.NewTicker(refreshInterval)
	defer ticker.Stop()
	for {
		open, err := s.o.Operations.List(ctx, ops.Filter{Open: true, Limit: refreshLimit})
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			s.metrics.refreshes.WithLabelValues("failed").Inc()
			s.log.Debug("the open operations cannot be counted now", zap.Error(err))
		default:
			s.metrics.refreshes.WithLabelValues("done").Inc()
			s.metrics.show(open)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Run serves l until ctx ends, which stands for the signal, and then drains: it
// returns before the grace is over. The error is one of the listener.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	web := &http.Server{
		Handler: s, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
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

// drain takes the server through Cordoned and Terminating, within the grace.
func (s *Server) drain(web *http.Server, signal time.Time) error {
	at := timetableOf(signal, s.o.Grace)
	s.life.Cordon(true)
	now := s.life.now()
	s.log.Info("cordoned: new requests are sent away, what runs is waited for",
		zap.Int("running", now.Running), zap.Int("streams", now.Streams), zap.Duration("grace", s.o.Grace))
	if !waited(s.life.Idle(), at.patience) {
		s.log.Warn("the grace is over: what still runs is ended with the mark that it may be sent again", zap.Int("running", s.life.now().Running))
		s.life.Cut()
		waited(s.life.Idle(), at.answered)
	}
	s.Close()
	s.log.Info("terminating: the listeners are closed")
	if time.Now().Before(at.patience) && shutdown(web, at.patience) == nil {
		return nil
	}
	s.life.Cut()
	if err := shutdown(web, at.closed); err != nil {
		s.log.Warn("connections that would not end are cut", zap.Error(err))
		return web.Close()
	}
	return nil
}

// waited reports whether done was closed before the deadline.
func waited(done <-chan struct{}, deadline time.Time) bool {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

func shutdown(web *http.Server, deadline time.Time) error {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	return web.Shutdown(ctx)
}

// Close admits nothing more and ends the internal work.
func (s *Server) Close() {
	s.life.Terminate()
	s.life.worked.Wait()
}
