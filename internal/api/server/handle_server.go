package server

import (
	_ "embed"
	"net/http"

	"ebb/internal/api/wire"
)

// openAPIDocument describes the API.
//
//go:embed openapi.yaml
var openAPIDocument []byte

func (s *Server) getOpenAPI(x *exchange) error {
	x.w.Header().Set("Content-Type", "application/yaml")
	_, err := x.w.Write(openAPIDocument)
	return err
}

// getHealth responds as long as the process runs (liveness).
func (s *Server) getHealth(x *exchange) error {
	return x.respondJSON(http.StatusOK, wire.Health{Status: "ok"})
}

// getReadiness responds 503 when the server is cordoned, so that load balancers use
// another one.
func (s *Server) getReadiness(x *exchange) error {
	if s.lifecycle.status().State != wire.Serving {
		return errorDraining()
	}
	return x.respondJSON(http.StatusOK, wire.Health{Status: "ok"})
}

func (s *Server) getMetrics(x *exchange) error {
	s.metrics.handler().ServeHTTP(x.w, x.r)
	return nil
}

func (s *Server) getLifecycle(x *exchange) error {
	return x.respondJSON(http.StatusOK, s.lifecycle.status())
}

func (s *Server) cordonServer(x *exchange) error {
	if err := x.readJSON(&struct{}{}, true); err != nil {
		return err
	}
	if s.lifecycle.Cordon(false) {
		s.log.Info("cordoned by " + x.principal.String())
	}
	return x.respondJSON(http.StatusOK, s.lifecycle.status())
}

func (s *Server) uncordonServer(x *exchange) error {
	if err := x.readJSON(&struct{}{}, true); err != nil {
		return err
	}
	if !s.lifecycle.Uncordon() {
		return newHTTPError(http.StatusConflict, wire.CodeNotNow, "this server was told by a signal to end, and does")
	}
	s.log.Info("serving again, by " + x.principal.String())
	return x.respondJSON(http.StatusOK, s.lifecycle.status())
}
