package server

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"ebb/internal/api/auth"
	"ebb/internal/api/wire"
	"ebb/internal/ops"
	"ebb/internal/version"
)

const (
	maxListLimit       = 1000
	defaultWaitTimeout = time.Minute
	minWaitTimeout     = time.Second
	maxWaitTimeout     = 10 * time.Minute
)

// startOperation starts an operation, and responds 202. If its ID stands for an equal
// one already, it responds 200.
func (s *Server) startOperation(x *exchange) error {
	var asked wire.Submission
	if err := x.readJSON(&asked, false); err != nil {
		return err
	}
	x.cluster = asked.Cluster
	r, err := s.operationRequest(x, asked)
	if err != nil {
		return err
	}
	x.operation = r.ID
	if err := x.requireRole(auth.Operator, r.Cluster); err != nil {
		return err
	}
	op, started, err := s.options.Operations.Start(x.ctx(), r)
	var conflict *ops.ConflictError
	switch {
	case errors.As(err, &conflict) && !x.principal.May(auth.Viewer, conflict.Exists.Cluster):
		// The caller has to learn that the ID is taken, but not by which operation.
		return newHTTPError(http.StatusConflict, wire.CodeConflict, "operation ID %q is taken, nothing was started: choose another one", r.ID)
	case err != nil:
		return err
	}
	x.w.Header().Set("Location", "/v1/operations/"+url.PathEscape(r.ID))
	if started {
		return x.respondJSON(http.StatusAccepted, op)
	}
	return x.respondJSON(http.StatusOK, op)
}

// operationRequest returns the operation that a client asks for. Its ID is the
// Idempotency-Key, or a new one.
func (s *Server) operationRequest(x *exchange, asked wire.Submission) (ops.Request, error) {
	key, err := x.idempotencyKey()
	if err != nil {
		return ops.Request{}, err
	}
	kind, err := ops.ParseKind(asked.Kind)
	if err != nil {
		return ops.Request{}, err
	}
	r := ops.Request{
		ID: key, Kind: kind, Cluster: asked.Cluster, Nodes: asked.Nodes, Count: asked.Count,
		Strict: asked.Strict, Route: version.Route{Hops: version.Each(asked.Hops), Target: version.Of(asked.Target)},
	}
	if r.ID == "" {
		if r.ID, err = ops.NewID(kind, asked.Cluster, time.Now()); err != nil {
			return ops.Request{}, err
		}
	}
	return r, r.Validate()
}

// authorizeOperation checks that the principal has at least a role on the cluster of
// the operation. If it may not even view that cluster, the operation is unknown to it.
func (s *Server) authorizeOperation(x *exchange, least auth.Role) error {
	if !validOperationID(x.operation) { // such as the ID of the workflow of one node
		return errorUnknownOperation(x.operation)
	}
	r, err := s.options.Operations.Request(x.ctx(), x.operation)
	if err != nil {
		return err
	}
	if r.Cluster == "" || !x.principal.May(auth.Viewer, r.Cluster) {
		return errorUnknownOperation(x.operation)
	}
	return x.requireRole(least, r.Cluster)
}

// visibleOperation returns the operation of a request, if the principal may view it.
func (s *Server) visibleOperation(x *exchange) (ops.Operation, error) {
	if err := s.authorizeOperation(x, auth.Viewer); err != nil {
		return ops.Operation{}, err
	}
	return s.options.Operations.Get(x.ctx(), x.operation)
}

func (s *Server) getOperation(x *exchange) error {
	if err := x.query().err(); err != nil {
		return err
	}
	op, err := s.visibleOperation(x)
	if err != nil {
		return err
	}
	return x.respondJSON(http.StatusOK, op)
}

// listOperations lists operations on the clusters that the principal may view, the
// newest first.
func (s *Server) listOperations(x *exchange) error {
	q := x.query()
	f := ops.Filter{Cluster: q.text("cluster"), Kind: q.kind("kind"), Open: q.flag("open"), Limit: q.number("limit", 1, maxListLimit)}
	if err := q.err(); err != nil {
		return err
	}
	names, all := x.principal.VisibleClusters()
	switch {
	case f.Cluster != "":
		if err := x.requireRole(auth.Viewer, f.Cluster); err != nil {
			return err
		}
		names = []string{f.Cluster}
	case all:
		names = []string{""}
	}
	found := wire.OperationList{Operations: []ops.Operation{}}
	for _, name := range names {
		f.Cluster = name
		some, err := s.options.Operations.List(x.ctx(), f)
		if err != nil {
			return err
		}
		found.Operations = append(found.Operations, some...)
	}
	if len(names) > 1 {
		slices.SortStableFunc(found.Operations, func(a, b ops.Operation) int {
			return cmp.Or(b.Started.Compare(a.Started), strings.Compare(a.ID, b.ID))
		})
	}
	if limit := cmp.Or(f.Limit, defaultListLimit); len(found.Operations) > limit {
		found.Operations = found.Operations[:limit]
	}
	return x.respondJSON(http.StatusOK, found)
}

// defaultListLimit is the limit if the request has none.
const defaultListLimit = 100

// errWaitTimeout is the cause when a wait has lasted as long as was asked for.
var errWaitTimeout = errors.New("waited long enough")

// waitOperation responds when the operation is over, the timeout has passed, or the
// server is cordoned.
func (s *Server) waitOperation(x *exchange) error {
	q := x.query()
	timeout := q.duration("timeout", defaultWaitTimeout, minWaitTimeout, maxWaitTimeout)
	if err := q.err(); err != nil {
		return err
	}
	last, err := s.visibleOperation(x)
	if err != nil {
		return err
	}
	if last.State.Over() {
		return x.respondJSON(http.StatusOK, wire.WaitAnswer{Type: wire.LineEnd, Operation: last})
	}
	ctx, err := s.acquireStream(x)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errWaitTimeout)
	defer cancel()
	err = s.watches.Watch(ctx, last.ID, func(op ops.Operation) { last = op })
	switch {
	case err == nil:
		return x.respondJSON(http.StatusOK, wire.WaitAnswer{Type: wire.LineEnd, Operation: last})
	case x.ctx().Err() == nil && x.cordoned.Err() != nil:
		setRetryAfter(x.w.Header(), retryAfterDraining)
		x.w.Header().Set("Connection", "close")
		return x.respondJSON(http.StatusOK, wire.WaitAnswer{Type: wire.LineRetry, Operation: last})
	case x.ctx().Err() == nil && errors.Is(context.Cause(ctx), errWaitTimeout):
		return x.respondJSON(http.StatusOK, wire.WaitAnswer{Type: wire.LineTimeout, Operation: last})
	}
	return endOfStream(ctx, err)
}
