package server

import (
	"net"
	"net/http"
	"time"

	"go.uber.org/zap"

	"ebb/internal/api/wire"
)

// recordRequest writes a finished request to the metrics, the access log and, if it
// changes something, the audit log.
func (s *Server) recordRequest(x *exchange) {
	took := time.Since(x.startedAt)
	s.metrics.requestFinished(x.route, x.r.Method, x.w.status, took)
	fields := []zap.Field{
		zap.String("request", x.id), zap.String("method", x.r.Method), zap.String("route", x.route.name()),
		zap.Int("status", x.w.status), zap.String("remote", remoteAddr(x.r)),
	}
	if forwarded := x.r.Header.Get("X-Forwarded-For"); forwarded != "" {
		fields = append(fields, zap.String("forwarded", wire.Truncate(forwarded))) // from the client or a proxy: not trustworthy
	}
	if x.principal != nil {
		fields = append(fields, zap.String("principal", x.principal.String()))
	}
	for key, value := range map[string]string{"operation": wire.Truncate(x.operation), "cluster": wire.Truncate(x.cluster), "code": string(x.code)} {
		if value != "" {
			fields = append(fields, zap.String(key, value))
		}
	}
	if x.route.mutates() || x.r.Method != http.MethodGet && x.r.Method != http.MethodHead {
		s.log.Named("audit").Info("audit", fields...)
	}
	level := zap.DebugLevel
	if x.route.scope != public {
		level = zap.InfoLevel // health probes come every second
	}
	s.log.Named("access").Log(level, "request", append(fields, zap.Duration("took", took), zap.Int64("bytes", x.w.bytes))...)
}

// remoteAddr returns the IP address that a request came from.
func remoteAddr(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
