package server

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"ebb/internal/api/wire"
	"ebb/internal/ops"
)

// metrics are the Prometheus metrics of a server, in a registry of their own.
type metrics struct {
	registry       *prometheus.Registry
	requests       *prometheus.CounterVec
	duration       *prometheus.HistogramVec
	inFlight       prometheus.Gauge
	limited        prometheus.Counter
	authFailures   prometheus.Counter
	openOperations *prometheus.GaugeVec
	refreshes      *prometheus.CounterVec
}

func newMetrics(life *lifecycle, version string) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ebb_gateway_requests_total", Help: "Requests that were answered."}, []string{"route", "method", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "ebb_gateway_request_seconds", Help: "How long requests took; streams and waits are as long as their callers want.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60}}, []string{"route"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "ebb_gateway_requests_in_flight", Help: "Requests that are being answered."}),
		limited: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ebb_gateway_rate_limited_total", Help: "Requests refused because there were too many."}),
		authFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ebb_gateway_auth_failures_total", Help: "Requests without a valid token."}),
		openOperations: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "ebb_gateway_open_operations", Help: "Operations that are not over, as of the last refresh."}, []string{"cluster", "kind"}),
		refreshes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ebb_gateway_refreshes_total", Help: "Refreshes of the open operations, which pause while the server is cordoned."}, []string{"result"}),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "ebb_gateway_build_info", Help: "Always 1.", ConstLabels: prometheus.Labels{"version": version}})
	build.Set(1)
	m.registry.MustRegister(m.requests, m.duration, m.inFlight, m.limited, m.authFailures, m.openOperations, m.refreshes, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "ebb_gateway_streams", Help: "Event streams and waits that are open."},
			func() float64 { return float64(life.status().Streams) }))
	for _, state := range []wire.ServerState{wire.Serving, wire.Leaving, wire.Cordoned, wire.Terminating} {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "ebb_gateway_lifecycle_state", Help: "1 for the state that the server is in.", ConstLabels: prometheus.Labels{"state": string(state)},
		}, func() float64 {
			if life.status().State == state {
				return 1
			}
			return 0
		}))
	}
	return m
}

func (m *metrics) requestStarted() { m.inFlight.Inc() }

// knownMethods limits the values of the label "method", which clients choose.
var knownMethods = map[string]bool{"GET": true, "HEAD": true, "POST": true, "PUT": true, "PATCH": true, "DELETE": true, "OPTIONS": true}

func (m *metrics) requestFinished(rt *route, method string, status int, took time.Duration) {
	if !knownMethods[method] {
		method = "other"
	}
	m.inFlight.Dec()
	m.requests.WithLabelValues(rt.name(), method, strconv.Itoa(status)).Inc()
	m.duration.WithLabelValues(rt.name()).Observe(took.Seconds())
}

// setOpenOperations sets the gauges of open operations.
func (m *metrics) setOpenOperations(open []ops.Operation) {
	m.openOperations.Reset()
	for _, op := range open {
		m.openOperations.WithLabelValues(op.Cluster, ops.Word(op.Kind)).Inc()
	}
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}
