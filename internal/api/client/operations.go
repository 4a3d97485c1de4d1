package client

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"ebb/internal/api/wire"
	"ebb/internal/ops"
	"ebb/internal/version"
)

// newIdempotencyKey returns a random key, so that repetitions of one call are
// recognised.
func newIdempotencyKey() string { return "ebb-" + strings.ToLower(rand.Text()) }

// Start implements ops.Client.
func (c *Client) Start(ctx context.Context, r ops.Request) (ops.Operation, bool, error) {
	if err := r.Validate(); err != nil {
		return ops.Operation{}, false, err
	}
	var op ops.Operation
	status, repeated, err := c.do(ctx, request{method: http.MethodPost, path: []string{"operations"}, key: r.ID, body: wire.Submission{
		Kind: ops.Word(r.Kind), Cluster: r.Cluster, Nodes: r.Nodes, Count: r.Count, Strict: r.Strict, Target: string(r.Target), Hops: version.Strings(r.Hops),
	}}, &op)
	var p *problemError
	if errors.As(err, &p) && p.Code == wire.CodeConflict && p.Exists != nil {
		err = &ops.ConflictError{ID: r.ID, Exists: *p.Exists, Asked: r}
	}
	return op, err == nil && (status == http.StatusAccepted || repeated), err
}

// Get implements ops.Client.
func (c *Client) Get(ctx context.Context, id string) (op ops.Operation, err error) {
	_, _, err = c.do(ctx, request{method: http.MethodGet, path: []string{"operations", id}}, &op)
	return op, operationError(id, err)
}

// List implements ops.Client.
func (c *Client) List(ctx context.Context, f ops.Filter) ([]ops.Operation, error) {
	q := url.Values{}
	setIfNotEmpty(q, "cluster", f.Cluster)
	if f.Kind != "" {
		q.Set("kind", ops.Word(f.Kind))
	}
	if f.Open {
		q.Set("open", "true")
	}
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	var list wire.OperationList
	_, _, err := c.do(ctx, request{method: http.MethodGet, path: []string{"operations"}, query: q}, &list)
	return list.Operations, err
}

// Cancel implements ops.Client.
func (c *Client) Cancel(ctx context.Context, id string) error {
	var op ops.Operation
	_, _, err := c.do(ctx, request{method: http.MethodPost, path: []string{"operations", id, "cancel"}, key: newIdempotencyKey()}, &op)
	return operationError(id, err)
}

// actionPaths are the last path segments of the routes that steer an operation.
var actionPaths = map[ops.Action]string{ops.Pause: "pause", ops.Resume: "resume", ops.RetryNow: "retry", ops.SkipNode: "skip-node", ops.GiveUp: "give-up"}

// Steer implements ops.Client.
func (c *Client) Steer(ctx context.Context, id string, s ops.Steering) (string, error) {
	if s.Key == "" {
		s.Key = newIdempotencyKey()
	}
	var said wire.Steered
	_, _, err := c.do(ctx, request{method: http.MethodPost, path: []string{"operations", id, actionPaths[s.Action]}, key: s.Key, body: wire.Steering{Node: s.Node}}, &said)
	var p *problemError
	if errors.As(err, &p) && p.Code == wire.CodeNotNow {
		return "", &ops.NotNowError{ID: id, Reason: strings.TrimPrefix(p.Detail, id+": ")}
	}
	return said.Answer, operationError(id, err)
}

// operationError returns a *ops.UnknownError for a 404 about an operation, and other
// errors as they are.
func operationError(id string, err error) error {
	var p *problemError
	if errors.As(err, &p) && p.Code == wire.CodeUnknown {
		return &ops.UnknownError{ID: id, Says: p.Detail}
	}
	return err
}

// setIfNotEmpty sets a parameter that has a value.
func setIfNotEmpty(q url.Values, name, value string) {
	if value != "" {
		q.Set(name, value)
	}
}
