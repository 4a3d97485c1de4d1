package server

import (
	"errors"
	"fmt"
	"net/http"

	"ebb/internal/api/auth"
	"ebb/internal/api/wire"
	"ebb/internal/forecast"
	"ebb/internal/version"
)

// listClusters lists the clusters that the principal may view.
func (s *Server) listClusters(x *exchange) error {
	if err := x.query().err(); err != nil {
		return err
	}
	visible, err := s.options.Clusters.Among(x.ctx(), func(name string) bool { return x.principal.May(auth.Viewer, name) })
	if err != nil {
		return err
	}
	return x.respondJSON(http.StatusOK, wire.ClusterList{Clusters: append([]forecast.Overview{}, visible...)})
}

// getCluster sends the overview of one cluster.
func (s *Server) getCluster(x *exchange) error {
	if err := x.query().err(); err != nil {
		return err
	}
	if err := x.requireRole(auth.Viewer, x.cluster); err != nil {
		return err
	}
	found, err := s.options.Clusters.Look(x.ctx(), x.cluster)
	if err != nil {
		return x.hideOtherClusters(err)
	}
	return x.respondJSON(http.StatusOK, found)
}

// hideOtherClusters removes the names of the known clusters from an error, unless the
// principal may view all clusters.
func (x *exchange) hideOtherClusters(err error) error {
	var unknownCluster *forecast.UnknownClusterError
	if _, all := x.principal.VisibleClusters(); !all && errors.As(err, &unknownCluster) {
		return &forecast.UnknownClusterError{Name: unknownCluster.Name}
	}
	return err
}

// planOperation sends what an operation would do to a cluster.
func (s *Server) planOperation(x *exchange) error {
	q := x.query()
	asked := forecast.Question{
		Kind: plannableKind(q), Cluster: x.cluster, Route: version.Route{Hops: version.Each(q.list("hops")), Target: version.Of(q.text("to"))},
		Nodes: q.list("nodes"), Count: q.number("count", 1, maxCount),
	}
	if err := q.err(); err != nil {
		return err
	}
	if err := x.requireRole(auth.Viewer, asked.Cluster); err != nil {
		return err
	}
	done, reached := s.plans.acquire(x.principal.String(), planLimits)
	if done == nil {
		return s.errorTooManyRequests(fmt.Sprintf("%d plans are made at this moment, and no more at once", reached))
	}
	defer done()
	f, err := s.options.Clusters.Plan(x.ctx(), asked)
	if err != nil {
		return x.hideOtherClusters(err)
	}
	return x.respondJSON(http.StatusOK, f)
}

// planLimits are how many plans are made at once: each reads a whole cluster.
var planLimits = slotLimits{all: 8, ofPrincipal: 4}

// maxCount is more than the nodes of any cluster.
const maxCount = 100_000
