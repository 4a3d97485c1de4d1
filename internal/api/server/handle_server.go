package server

import (
	_ "embed"
	"net/http"
	"slices"

	"ebb/internal/api/auth"
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

// getReadiness responds 503 when the server leaves or is cordoned, so that load balancers
// use another one. A caller with a token is told how the server stands with the clusters whose
// endpoints it serves. That none of them is in step does not make it unready: clients would
// find a server that knows less.
func (s *Server) getReadiness(x *exchange) error {
	if s.lifecycle.status().State != wire.Serving {
		return errorDraining()
	}
	now := wire.Readiness{Status: "ok"}
	if x.r.Header.Get("Authorization") != "" {
		if err := s.identify(x); err != nil {
			return err
		}
		now.Endpoints = slices.DeleteFunc(s.options.Followed(), func(c wire.FollowedCluster) bool { return !x.principal.May(auth.Viewer, c.Cluster) })
	}
	return x.respondJSON(http.StatusOK, now)
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
