package server

import (
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"ebb/internal/api/auth"
	"ebb/internal/api/wire"
)

// errorRoute returns the route of a request that no route matches. It requires a token,
// like any other, before it responds with err.
func errorRoute(err *httpError) *route {
	return &route{pattern: "unknown", role: auth.Viewer, scope: anyCluster, drain: alwaysServed,
		handle: func(*Server, *exchange) error { return err }}
}

// router finds routes. It matches with http.ServeMux, but does not use its handlers for
// redirects, 404 and 405, because every error is sent as a problem document.
type router struct {
	mux     *http.ServeMux
	routes  map[string]*route
	methods []string
}

func newRouter(all []route) *router {
	t := &router{mux: http.NewServeMux(), routes: map[string]*route{}}
	for i := range all {
		rt := &all[i]
		pattern := rt.method + " " + rt.pattern
		t.mux.Handle(pattern, http.NotFoundHandler()) // only the pattern is used
		t.routes[pattern] = rt
		if !slices.Contains(t.methods, rt.method) {
			t.methods = append(t.methods, rt.method)
		}
	}
	return t
}

// lookup returns the route of a request, and sets the path values of the request.
func (t *router) lookup(r *http.Request) *route {
	if r.URL.Path == "" || path.Clean(r.URL.Path) != r.URL.Path {
		return errorRoute(newHTTPError(http.StatusNotFound, wire.CodeUnknown, "there is nothing at %q", wire.Truncate(r.URL.Path)))
	}
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	if rt := t.match(r, method); rt != nil && (method == r.Method || rt.scope == public) {
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
		return errorRoute(newHTTPError(http.StatusNotFound, wire.CodeUnknown, "there is nothing at %q: GET /v1/openapi.yaml tells what there is", wire.Truncate(r.URL.Path)))
	}
	slices.Sort(allowed)
	f := newHTTPError(http.StatusMethodNotAllowed, wire.CodeMethod, "%s is not possible here, only %s", wire.Truncate(r.Method), strings.Join(allowed, ", "))
	f.allow = allowed
	return errorRoute(f)
}

// match returns the route of a request with another method, nil if there is none.
func (t *router) match(r *http.Request, method string) *route {
	asked := *r
	asked.Method = method
	_, pattern := t.mux.Handler(&asked)
	return t.routes[pattern]
}

// setPathValues sets the wildcards of the pattern as path values of the request, as
// http.ServeMux does.
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
