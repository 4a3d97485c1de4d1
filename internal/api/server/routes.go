package server

import (
	"net/http"

	"ebb/internal/api/auth"
	"ebb/internal/ops"
)

// scope is where a principal must have the role of a route.
type scope string

const (
	public      scope = "public"       // no token is required
	anyCluster  scope = "any cluster"  // on any cluster; the handler checks the cluster in question
	allClusters scope = "all clusters" // the route is about the gateway itself
)

// route is a method and a path of the API.
type route struct {
	method, pattern string
	role            auth.Role // required, on the clusters of scope
	scope           scope
	drain           drainPolicy // what happens while the server is Cordoned
	handle          func(*Server, *exchange) error
}

// routes returns all routes of the API.
func routes() []route {
	return []route{
		{"GET", "/healthz", "", public, alwaysServed, (*Server).getHealth},
		{"GET", "/readyz", "", public, alwaysServed, (*Server).getReadiness},
		{"GET", "/v1/openapi.yaml", "", public, alwaysServed, (*Server).getOpenAPI},
		{"GET", "/metrics", auth.Viewer, allClusters, alwaysServed, (*Server).getMetrics},

		{"GET", "/v1/lifecycle", auth.Viewer, anyCluster, alwaysServed, (*Server).getLifecycle},
		{"POST", "/v1/lifecycle/cordon", auth.Admin, allClusters, alwaysServed, (*Server).cordonServer},
		{"POST", "/v1/lifecycle/uncordon", auth.Admin, allClusters, alwaysServed, (*Server).uncordonServer},

		{"POST", "/v1/operations", auth.Operator, anyCluster, rejectedWhenCordoned, (*Server).startOperation},
		{"GET", "/v1/operations", auth.Viewer, anyCluster, rejectedWhenCordoned, (*Server).listOperations},
		{"GET", "/v1/operations/{id}", auth.Viewer, anyCluster, servedUntilTerminating, (*Server).getOperation},
		{"GET", "/v1/operations/{id}/wait", auth.Viewer, anyCluster, servedUntilTerminating, (*Server).waitOperation},
		{"GET", "/v1/operations/{id}/events", auth.Viewer, anyCluster, streamUntilCordoned, (*Server).streamEvents},
		{"POST", "/v1/operations/{id}/cancel", auth.Operator, anyCluster, servedUntilTerminating, (*Server).cancelOperation},
		{"POST", "/v1/operations/{id}/pause", auth.Operator, anyCluster, rejectedWhenCordoned, steerOperation(ops.Pause)},
		{"POST", "/v1/operations/{id}/resume", auth.Operator, anyCluster, rejectedWhenCordoned, steerOperation(ops.Resume)},
		{"POST", "/v1/operations/{id}/retry", auth.Operator, anyCluster, rejectedWhenCordoned, steerOperation(ops.RetryNow)},
		{"POST", "/v1/operations/{id}/skip-node", auth.Operator, anyCluster, rejectedWhenCordoned, steerOperation(ops.SkipNode)},
		{"POST", "/v1/operations/{id}/give-up", auth.Operator, anyCluster, rejectedWhenCordoned, steerOperation(ops.GiveUp)},

		{"GET", "/v1/clusters", auth.Viewer, anyCluster, rejectedWhenCordoned, (*Server).listClusters},
		{"GET", "/v1/clusters/{name}", auth.Viewer, anyCluster, rejectedWhenCordoned, (*Server).getCluster},
		{"GET", "/v1/clusters/{name}/plan", auth.Viewer, anyCluster, rejectedWhenCordoned, (*Server).planOperation},
	}
}

// mutates reports whether the route changes something, and is audited.
func (rt *route) mutates() bool { return rt.method == http.MethodPost }

// name returns the name of the route in metrics and logs.
func (rt *route) name() string { return rt.pattern }
