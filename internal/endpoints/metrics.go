package endpoints

import "github.com/prometheus/client_golang/prometheus"

var _ prometheus.Collector = (*Server)(nil)

var (
	clustersDesc = prometheus.NewDesc("ebb_endpoints_clusters", "Clusters whose services are followed.", nil, nil)
	servicesDesc = prometheus.NewDesc("ebb_endpoints_services", "Services that clients ask for.", nil, nil)
	streamsDesc  = prometheus.NewDesc("ebb_endpoints_streams", "Streams of clients.", nil, nil)
	changesDesc  = prometheus.NewDesc("ebb_endpoints_changes_total", "Changes of the endpoints of services that clients ask for.", nil, nil)
	inStepDesc   = prometheus.NewDesc("ebb_endpoints_cluster_in_step", "1 if everything of a cluster is known and no watch fails.", []string{"cluster"}, nil)
	failingDesc  = prometheus.NewDesc("ebb_endpoints_watch_failing", "1 if the last list or watch of a resource was refused or not answered.", []string{"cluster", "resource"}, nil)
	eventDesc    = prometheus.NewDesc("ebb_endpoints_watch_last_event_timestamp_seconds", "When something was heard of a resource last: a change or, about once a minute, that there is none.", []string{"cluster", "resource"}, nil)
	nacksDesc    = prometheus.NewDesc("ebb_endpoints_refusals_total", "Updates that a client did not accept (NACK): there should be none.", nil, nil)
)

// Describe implements prometheus.Collector.
func (s *Server) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{clustersDesc, servicesDesc, streamsDesc, changesDesc, nacksDesc, inStepDesc, failingDesc, eventDesc} {
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
	for _, c := range s.Clusters() {
		collectCluster(c, to)
	}
}

func collectCluster(c ClusterStatus, to chan<- prometheus.Metric) {
	to <- prometheus.MustNewConstMetric(inStepDesc, prometheus.GaugeValue, zeroOrOne(c.InStep()), c.Name)
	for _, w := range c.Watches {
		to <- prometheus.MustNewConstMetric(failingDesc, prometheus.GaugeValue, zeroOrOne(w.Err != nil), c.Name, w.Resource)
		if !w.LastEvent.IsZero() {
			to <- prometheus.MustNewConstMetric(eventDesc, prometheus.GaugeValue, float64(w.LastEvent.UnixMilli())/1000, c.Name, w.Resource)
		}
	}
}

func zeroOrOne(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
