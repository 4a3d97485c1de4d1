package api

import (
	_ "embed"
	"errors"
	"net/http"
	"slices"

	"ebb/internal/forecast"
)

// openAPI is the document that describes the API.
//
//go:embed openapi.yaml
var document []byte

func (s *Server) openAPI(c *call) error {
	c.w.Header().Set("Content-Type", "application/yaml")
	_, err := c.w.Write(document)
	return err
}

// healthz answers as long as the process can.
func (s *Server) healthz(c *call) error { return c.answer(http.StatusOK, health{Status: "ok"}) }

// readyz tells whoever spreads requests over servers whether this one takes any.
func (s *Server) readyz(c *call) error {
	if s.life.now().State != Serving {
		return draining()
	}
	return c.answer(http.StatusOK, health{Status: "ok"})
}

func (s *Server) scrape(c *call) error {
	s.metrics.handler().ServeHTTP(c.w, c.r)
	return nil
}

func (s *Server) getLifecycle(c *call) error { return c.answer(http.StatusOK, s.life.now()) }

func (s *Server) cordon(c *call) error {
	if err := c.body(&struct{}{}, true); err != nil {
		return err
	}
	if s.life.Cordon(false) {
		s.log.Info("cordoned by " + c.principal.String())
	}
	return c.answer(http.StatusOK, s.life.now())
}

func (s *Server) uncordon(c *call) error {
	if err := c.body(&struct{}{}, true); err != nil {
		return err
	}
	if !s.life.Uncordon() {
		return fail(http.StatusConflict, CodeNotNow, "this server was told by a signal to end, and does")
	}
	s.log.Info("serving again, by " + c.principal.String())
	return c.answer(http.StatusOK, s.life.now())
}

// listClusters lists the clusters that the caller may look at.
func (s *Server) listClusters(c *call) error {
	if err := c.query().err(); err != nil {
		return err
	}
	found, err := s.o.Clusters.List(c.ctx())
	if err != nil {
		return err
	}
	visible := slices.DeleteFunc(slices.Clone(found), func(o forecast.Overview) bool { return !c.principal.May(Viewer, o.Cluster) })
	return c.answer(http.StatusOK, clusterList{Clusters: append([]forecast.Overview{}, visible...)})
}

// look shows one cluster.
func (s *Server) look(c *call) error {
	if err := c.query().err(); err != nil {
		return err
	}
	if err := c.allowed(Viewer, c.cluster); err != nil {
		return err
	}
	found, err := s.o.Clusters.Look(c.ctx(), c.cluster)
	if err != nil {
		return c.unnamed(err)
	}
	return c.answer(http.StatusOK, found)
}

// unnamed takes the names of the other clusters out of an error, for a caller that
// may not look at all of them.
func (c *call) unnamed(err error) error {
	var nowhere *forecast.UnknownClusterError
	if _, all := c.principal.clusters(); !all && errors.As(err, &nowhere) {
		return &forecast.UnknownClusterError{Name: nowhere.Name}
	}
	return err
}

// plan tells what an operation would do to a cluster.
func (s *Server) plan(c *call) error {
	q := c.query()
	asked := forecast.Question{
		Kind: kindOf(q), Cluster: c.cluster, Target: q.text("to"), Hops: q.list("hops"),
		Nodes: q.list("nodes"), Count: q.number("count", 1, maxCount),
	}
	if err := q.err(); err != nil {
		return err
	}
	if err := c.allowed(Viewer, asked.Cluster); err != nil {
		return err
	}
	f, err := s.o.Clusters.Plan(c.ctx(), asked)
	if err != nil {
		return c.unnamed(err)
	}
	return c.answer(http.StatusOK, f)
}

// maxCount is more nodes than a cluster has.
const maxCount = 100_000
