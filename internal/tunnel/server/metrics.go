package server

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"ebb/internal/tunnel"
	"ebb/internal/tunnel/session"
)

var _ prometheus.Collector = (*Server)(nil)

var (
	connectionsDesc = prometheus.NewDesc("ebb_tunnel_agent_connections", "Connections of agents by state.", []string{"cluster", "state"}, nil)
	streamsDesc     = prometheus.NewDesc("ebb_tunnel_streams", "Dials under way and connections through agents.", []string{"cluster"}, nil)
	drainingDesc    = prometheus.NewDesc("ebb_tunnel_draining_seconds", "How long the agent connection that drains longest has done so.", []string{"cluster"}, nil)
)

// metrics are counted as things happen; what is true now is asked for when it is collected.
type metrics struct {
	dials    *prometheus.CounterVec
	duration *prometheus.HistogramVec
	bytes    *prometheus.CounterVec
	problems *prometheus.CounterVec
	refused  *prometheus.CounterVec
}

func newMetrics() *metrics {
	return &metrics{
		dials: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ebb_tunnel_dials_total", Help: "Dials by outcome and by the strategy that found the agent.",
		}, []string{"cluster", "outcome", "strategy"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "ebb_tunnel_dial_duration_seconds", Help: "From a dial to its answer.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
		}, []string{"cluster"}),
		bytes:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "ebb_tunnel_bytes_total", Help: "Bytes carried, in both directions."}, []string{"cluster"}),
		problems: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "ebb_tunnel_ignored_packets_total", Help: "Packets that made no sense."}, []string{"cluster"}),
		refused:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "ebb_tunnel_refused_total", Help: "Agents and clients that were refused."}, []string{"who"}),
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.dials, m.duration, m.bytes, m.problems, m.refused}
}

func (m *metrics) dialled(cluster string, s tunnel.Strategy, err error, took time.Duration) {
	m.dials.WithLabelValues(cluster, outcome(err), string(s)).Inc()
	m.duration.WithLabelValues(cluster).Observe(took.Seconds())
}

func (m *metrics) moved(cluster string, n int) { m.bytes.WithLabelValues(cluster).Add(float64(n)) }

func (m *metrics) problem(cluster string) { m.problems.WithLabelValues(cluster).Inc() }

// outcome is how a dial went: ok, denied (by the configuration), no-agent, refused (by the agent
// or the destination) or given-up.
func outcome(err error) string {
	var refused *session.RefusedError
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, ErrNotAllowed):
		return "denied"
	case errors.Is(err, tunnel.ErrNoAgent):
		return "no-agent"
	case errors.As(err, &refused):
		return "refused"
	}
	return "given-up"
}

// Describe implements prometheus.Collector.
func (s *Server) Describe(to chan<- *prometheus.Desc) {
	to <- connectionsDesc
	to <- streamsDesc
	to <- drainingDesc
	for _, c := range s.metrics.collectors() {
		c.Describe(to)
	}
}

// Collect implements prometheus.Collector.
func (s *Server) Collect(to chan<- prometheus.Metric) {
	type now struct {
		states   map[State]int
		streams  int
		draining time.Duration
	}
	clusters := map[string]*now{}
	for name := range s.opts.Clusters {
		clusters[name] = &now{states: map[State]int{Ready: 0, Cordoned: 0, Draining: 0}}
	}
	s.mu.Lock()
	for name, all := range s.connections {
		for _, c := range all {
			n := clusters[name]
			n.states[s.state(name, c)]++
			n.streams += c.session.Streams()
			if c.draining {
				n.draining = max(n.draining, time.Since(c.drainedAt))
			}
		}
	}
	s.mu.Unlock()
	for name, n := range clusters {
		for state, count := range n.states {
			to <- prometheus.MustNewConstMetric(connectionsDesc, prometheus.GaugeValue, float64(count), name, string(state))
		}
		to <- prometheus.MustNewConstMetric(streamsDesc, prometheus.GaugeValue, float64(n.streams), name)
		to <- prometheus.MustNewConstMetric(drainingDesc, prometheus.GaugeValue, n.draining.Seconds(), name)
	}
	for _, c := range s.metrics.collectors() {
		c.Collect(to)
	}
}
