package api

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"ebb/internal/forecast"
	"ebb/internal/ops"
	"ebb/workflows"
)

// callKey names one call, so that its repetition is known for one.
func callKey() string { return "ebb-" + strings.ToLower(rand.Text()) }

// Start implements ops.Client.
func (c *Client) Start(ctx context.Context, r ops.Request) (ops.Operation, bool, error) {
	if err := r.Validate(); err != nil {
		return ops.Operation{}, false, err
	}
	var op ops.Operation
	status, repeated, err := c.call(ctx, request{method: http.MethodPost, path: []string{"operations"}, key: r.ID, body: submission{
		Kind: ops.Word(r.Kind), Cluster: r.Cluster, Nodes: r.Nodes, Count: r.Count, Strict: r.Strict, Target: r.Target, Hops: r.Hops,
	}}, &op)
	var p *problemError
	if errors.As(err, &p) && p.Code == CodeConflict && p.Exists != nil {
		err = &ops.ConflictError{ID: r.ID, Exists: *p.Exists, Asked: r}
	}
	return op, err == nil && (status == http.StatusAccepted || repeated), err
}

// Get implements ops.Client.
func (c *Client) Get(ctx context.Context, id string) (op ops.Operation, err error) {
	_, _, err = c.call(ctx, request{method: http.MethodGet, path: []string{"operations", id}}, &op)
	return op, ofOperation(id, err)
}

// List implements ops.Client.
func (c *Client) List(ctx context.Context, f ops.Filter) ([]ops.Operation, error) {
	q := url.Values{}
	set(q, "cluster", f.Cluster)
	if f.Kind != "" {
		q.Set("kind", ops.Word(f.Kind))
	}
	if f.Open {
		q.Set("open", "true")
	}
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	var list operationList
	_, _, err := c.call(ctx, request{method: http.MethodGet, path: []string{"operations"}, query: q}, &list)
	return list.Operations, err
}

// Cancel implements ops.Client.
func (c *Client) Cancel(ctx context.Context, id string) error {
	var op ops.Operation
	_, _, err := c.call(ctx, request{method: http.MethodPost, path: []string{"operations", id, "cancel"}, key: callKey()}, &op)
	return ofOperation(id, err)
}

// Steer implements ops.Client.
func (c *Client) Steer(ctx context.Context, id string, s ops.Steering) (string, error) {
	word := ""
	for w, action := range actions {
		if action == s.Action {
			word = w
		}
	}
	if s.Key == "" {
		s.Key = callKey()
	}
	var said steered
	_, _, err := c.call(ctx, request{method: http.MethodPost, path: []string{"operations", id, word}, key: s.Key, body: steering{Node: s.Node}}, &said)
	var p *problemError
	if errors.As(err, &p) && p.Code == CodeNotNow {
		return "", &ops.NotNowError{ID: id, Reason: strings.TrimPrefix(p.Detail, id+": ")}
	}
	return said.Answer, ofOperation(id, err)
}

// ofOperation gives an error about an operation the type that commands know.
func ofOperation(id string, err error) error {
	var p *problemError
	if errors.As(err, &p) && p.Code == CodeUnknown {
		return &ops.UnknownError{ID: id, Says: p.Detail}
	}
	return err
}

// clusters is a client as it looks at clusters.
type clusters struct{ *Client }

// Clusters is how commands look at clusters through the gateway.
func (c *Client) Clusters() forecast.Clusters { return clusters{c} }

// List implements forecast.Clusters.
func (c clusters) List(ctx context.Context) ([]forecast.Overview, error) {
	var list clusterList
	_, _, err := c.call(ctx, request{method: http.MethodGet, path: []string{"clusters"}}, &list)
	return list.Clusters, err
}

// Look implements forecast.Clusters. A cluster that the caller may not look at is
// as good as none: the name may be that of an operation.
func (c clusters) Look(ctx context.Context, name string) (o forecast.Overview, err error) {
	_, _, err = c.call(ctx, request{method: http.MethodGet, path: []string{"clusters", name}}, &o)
	var p *problemError
	if errors.As(err, &p) && p.Code == CodeForbidden {
		return o, &forecast.UnknownClusterError{Name: name}
	}
	return o, ofCluster(name, err)
}

// Plan implements forecast.Clusters.
func (c clusters) Plan(ctx context.Context, q forecast.Question) (f forecast.Forecast, err error) {
	values := url.Values{"kind": {ops.Word(q.Kind)}}
	set(values, "to", q.Target)
	set(values, "hops", strings.Join(q.Hops, ","))
	set(values, "nodes", strings.Join(q.Nodes, ","))
	if q.Kind == workflows.KindScaleDown && len(q.Nodes) == 0 {
		values.Set("count", strconv.Itoa(q.Count))
	}
	_, _, err = c.call(ctx, request{method: http.MethodGet, path: []string{"clusters", q.Cluster, "plan"}, query: values}, &f)
	return f, ofCluster(q.Cluster, err)
}

func set(q url.Values, name, value string) {
	if value != "" {
		q.Set(name, value)
	}
}

func ofCluster(name string, err error) error {
	var p *problemError
	if errors.As(err, &p) && p.Code == CodeUnknown {
		return &forecast.UnknownClusterError{Name: name}
	}
	return err
}
