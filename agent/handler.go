package main

import (
	"fmt"
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"ebb/internal/tunnel/agent"
)

// handler answers for an agent.
func handler(a *agent.Agent) http.Handler {
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(a, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := a.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("POST /drain", func(w http.ResponseWriter, r *http.Request) {
		if !fromHere(r) {
			http.Error(w, "only callers on this machine may let the agent drain", http.StatusForbidden)
			return
		}
		a.Drain()
		w.WriteHeader(http.StatusAccepted)
		_, _ = fmt.Fprintf(w, "draining, %d streams\n", a.Streams())
	})
	return mux
}

// fromHere reports whether a request comes from this machine.
func fromHere(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	ip := net.ParseIP(host)
	return err == nil && ip != nil && ip.IsLoopback()
}
