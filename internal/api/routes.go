package api

import (
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
)

// reach is on what a route's role has to be held.
type reach string

const (
	anybody   reach = "anybody"   // no token is asked for
	aCluster  reach = "a cluster" // the role on any cluster; the handler checks on which
	theServer reach = "all"       // the role on all clusters: it concerns the whole server
)

// route is one thing the server does.
type route struct {
	method, pattern string
	role            Role
	reach           reach
	class           class
	handle          func(*Server, *call) error
}

// routes is all there is.
func routes() []route {
	return []route{
		{"GET", "/healthz", "", anybody, always, (*Server).healthz},
		{"GET", "/readyz", "", anybody, always, (*Server).readyz},
		{"GET", "/v1/openapi.yaml", "", anybody, always, (*Server).openAPI},
		{"GET", "/metrics", Viewer, theServer, always, (*Server).scrape},

		{"GET", "/v1/lifecycle", Viewer, aCluster, always, (*Server).getLifecycle},
		{"POST", "/v1/lifecycle/cordon", Admin, theServer, always, (*Server).cordon},
		{"POST", "/v1/lifecycle/uncordon", Admin, theServer, always, (*Server).uncordon},

		{"POST", "/v1/operations", Operator, aCluster, fresh, (*Server).submit},
		{"GET", "/v1/operations", Viewer, aCluster, fresh, (*Server).list},
		{"GET", "/v1/operations/{id}", Viewer, aCluster, existing, (*Server).get},
		{"GET", "/v1/operations/{id}/wait", Viewer, aCluster, existing, (*Server).wait},
		{"GET", "/v1/operations/{id}/events", Viewer, aCluster, stream, (*Server).events},
		{"POST", "/v1/operations/{id}/cancel", Operator, aCluster, existing, (*Server).cancel},
		{"POST", "/v1/operations/{id}/pause", Operator, aCluster, fresh, steer("pause")},
		{"POST", "/v1/operations/{id}/resume", Operator, aCluster, fresh, steer("resume")},
		{"POST", "/v1/operations/{id}/retry", Operator, aCluster, fresh, steer("retry")},
		{"POST", "/v1/operations/{id}/skip-node", Operator, aCluster, fresh, steer("skip-node")},

		{"GET", "/v1/clusters", Viewer, aCluster, fresh, (*Server).listClusters},
		{"GET", "/v1/clusters/{name}", Viewer, aCluster, fresh, (*Server).look},
		{"GET", "/v1/clusters/{name}/plan", Viewer, aCluster, fresh, (*Server).plan},
	}
}

// mutates reports whether a call of the route changes something, so that it is audited.
func (rt *route) mutates() bool { return rt.method == http.MethodPost }

// name is the route in metrics and logs.
func (rt *route) name() string { return rt.pattern }

// nowhere is the route of a request that has none: it needs a token like any
// other, so that one without learns nothing, and is then told what is wrong.
func nowhere(f *failure) *route {
	return &route{pattern: "unknown", role: Viewer, reach: aCluster, class: always,
		handle: func(*Server, *call) error { return f }}
}

// table finds routes. The matching is the standard library's; what it would answer
// itself (redirects, 404, 405) is not used, for every error is a Problem.
type table struct {
	mux     *http.ServeMux
	routes  map[string]*route
	methods []string
}

func newTable(all []route) *table {
	t := &table{mux: http.NewServeMux(), routes: map[string]*route{}}
	for i := range all {
		rt := &all[i]
		pattern := rt.method + " " + rt.pattern
		t.mux.Handle(pattern, http.NotFoundHandler()) // only its pattern is asked for
		t.routes[pattern] = rt
		if !slices.Contains(t.methods, rt.method) {
			t.methods = append(t.methods, rt.method)
		}
	}
	return t
}

// find is the route of a request; it sets the request's path values.
func (t *table) find(r *http.Request) *route {
	if r.URL.Path == "" || path.Clean(r.URL.Path) != r.URL.Path {
		return nowhere(fail(http.StatusNotFound, CodeUnknown, "there is nothing at %q", brief(r.URL.Path)))
	}
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	if rt := t.match(r, method); rt != nil && (method == r.Method || rt.reach == anybody) {
		setPathValues(r, rt.pattern)
		return rt
	}
	var allowed []string
	for _, method := range t.methods {
		if t.match(r, method) != nil {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) == 0 {
		return nowhere(fail(http.StatusNotFound, CodeUnknown, "there is nothing at %q: GET /v1/openapi.yaml tells what there is", brief(r.URL.Path)))
	}
	slices.Sort(allowed)
	f := fail(http.StatusMethodNotAllowed, CodeMethod, "%s is not possible here, only %s", brief(r.Method), strings.Join(allowed, ", "))
	f.allow = allowed
	return nowhere(f)
}

func (t *table) match(r *http.Request, method string) *route {
	asked := *r
	asked.Method = method
	_, pattern := t.mux.Handler(&asked)
	return t.routes[pattern]
}

// setPathValues is what the mux does when it serves a request itself.
func setPathValues(r *http.Request, pattern string) {
	want, got := strings.Split(pattern, "/"), strings.Split(r.URL.EscapedPath(), "/")
	for i, part := range want {
		name, ok := strings.CutPrefix(part, "{")
		if !ok || i >= len(got) {
			continue
		}
		if value, err := url.PathUnescape(got[i]); err == nil {
			r.SetPathValue(strings.TrimSuffix(name, "}"), value)
		}
	}
}
