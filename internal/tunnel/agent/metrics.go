package agent

import "github.com/prometheus/client_golang/prometheus"

var _ prometheus.Collector = (*Agent)(nil)

var (
	serversDesc  = prometheus.NewDesc("ebb_agent_connected_servers", "Servers that are connected, without those that are about to end.", nil, nil)
	wantedDesc   = prometheus.NewDesc("ebb_agent_wanted_servers", "How many servers there are, as one of them has said.", nil, nil)
	streamsDesc  = prometheus.NewDesc("ebb_agent_streams", "Dials under way and connections.", nil, nil)
	drainingDesc = prometheus.NewDesc("ebb_agent_draining", "1 while the agent drains.", nil, nil)
)

// Describe implements prometheus.Collector.
func (a *Agent) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{serversDesc, wantedDesc, streamsDesc, drainingDesc} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (a *Agent) Collect(to chan<- prometheus.Metric) {
	streams, draining := a.Streams(), 0
	if a.isDraining() {
		draining = 1
	}
	a.mu.Lock()
	servers, wanted := len(a.servers), a.wanted
	a.mu.Unlock()
	gauge := func(d *prometheus.Desc, n int) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n))
	}
	gauge(serversDesc, servers)
	gauge(wantedDesc, wanted)
	gauge(streamsDesc, streams)
	gauge(drainingDesc, draining)
}
