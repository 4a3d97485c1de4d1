package client

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"ebb/internal/api/wire"
	"ebb/internal/forecast"
	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/internal/version"
)

// clusters is the view of a client that implements forecast.Clusters.
type clusters struct{ *Client }

// Clusters returns the clusters behind the gateway.
func (c *Client) Clusters() forecast.Clusters { return clusters{c} }

// List implements forecast.Clusters.
func (c clusters) List(ctx context.Context) ([]forecast.Overview, error) {
	var list wire.ClusterList
	_, _, err := c.do(ctx, request{method: http.MethodGet, path: []string{"clusters"}}, &list)
	return list.Clusters, err
}

// Look implements forecast.Clusters. A cluster that the caller may not see is unknown,
// because commands try a name as an operation then.
func (c clusters) Look(ctx context.Context, name string) (o forecast.Overview, err error) {
	_, _, err = c.do(ctx, request{method: http.MethodGet, path: []string{"clusters", name}}, &o)
	var p *problemError
	if errors.As(err, &p) && p.Code == wire.CodeForbidden {
		return o, &forecast.UnknownClusterError{Name: name}
	}
	return o, clusterError(name, err)
}

// Plan implements forecast.Clusters.
func (c clusters) Plan(ctx context.Context, q forecast.Question) (f forecast.Forecast, err error) {
	values := url.Values{"kind": {ops.Word(q.Kind)}}
	setIfNotEmpty(values, "to", string(q.Route.Target))
	setIfNotEmpty(values, "hops", strings.Join(version.Strings(q.Route.Hops), ","))
	setIfNotEmpty(values, "nodes", strings.Join(q.Nodes, ","))
	if q.Kind == operation.KindScaleDown && len(q.Nodes) == 0 {
		values.Set("count", strconv.Itoa(q.Count))
	}
	_, _, err = c.do(ctx, request{method: http.MethodGet, path: []string{"clusters", q.Cluster, "plan"}, query: values}, &f)
	return f, clusterError(q.Cluster, err)
}

// clusterError returns a *forecast.UnknownClusterError for a 404 about a cluster, and
// other errors as they are.
func clusterError(name string, err error) error {
	var p *problemError
	if errors.As(err, &p) && p.Code == wire.CodeUnknown {
		return &forecast.UnknownClusterError{Name: name}
	}
	return err
}
