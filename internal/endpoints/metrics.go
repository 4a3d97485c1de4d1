package endpoints

import "github.com/prometheus/client_golang/prometheus"

var _ prometheus.Collector = (*Server)(nil)

var (
	clustersDesc = prometheus.NewDesc("ebb_endpoints_clusters", "Clusters whose services are followed.", nil, nil)
	servicesDesc = prometheus.NewDesc("ebb_endpoints_services", "Services that clients ask for.", nil, nil)
	streamsDesc  = prometheus.NewDesc("ebb_endpoints_streams", "Streams of clients.", nil, nil)
	changesDesc  = prometheus.NewDesc("ebb_endpoints_changes_total", "Changes of the endpoints of services that clients ask for.", nil, nil)
	nacksDesc    = prometheus.NewDesc("ebb_endpoints_refusals_total", "Updates that a client did not accept (NACK): there should be none.", nil, nil)
)

// Describe implements prometheus.Collector.
func (s *Server) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{clustersDesc, servicesDesc, streamsDesc, changesDesc, nacksDesc} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (s *Server) Collect(to chan<- prometheus.Metric) {
	now := s.Stats()
	to <- prometheus.MustNewConstMetric(clustersDesc, prometheus.GaugeValue, float64(now.Clusters))
	to <- prometheus.MustNewConstMetric(servicesDesc, prometheus.GaugeValue, float64(now.Services))
	to <- prometheus.MustNewConstMetric(streamsDesc, prometheus.GaugeValue, float64(now.Streams))
	to <- prometheus.MustNewConstMetric(changesDesc, prometheus.CounterValue, float64(now.Changes))
	to <- prometheus.MustNewConstMetric(nacksDesc, prometheus.CounterValue, float64(now.NACKs))
}
