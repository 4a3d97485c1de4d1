package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"ebb/internal/ops"
	"ebb/workflows"
)

const (
	maxList     = 1000
	defaultWait = time.Minute
	leastWait   = time.Second
	mostWait    = 10 * time.Minute
)

// submit starts an operation, or finds that its ID stands for the same one already.
func (s *Server) submit(c *call) error {
	var asked submission
	if err := c.body(&asked, false); err != nil {
		return err
	}
	c.cluster = asked.Cluster
	r, err := s.requestOf(c, asked)
	if err != nil {
		return err
	}
	c.operation = r.ID
	if err := c.allowed(Operator, r.Cluster); err != nil {
		return err
	}
	op, started, err := s.o.Operations.Start(c.ctx(), r)
	var conflict *ops.ConflictError
	switch {
	case errors.As(err, &conflict) && !c.principal.May(Viewer, conflict.Exists.Cluster):
		// That an ID is taken cannot be hidden from who would have it; by what, can.
		return fail(http.StatusConflict, CodeConflict, "operation ID %q is taken, nothing was started: choose another one", r.ID)
	case err != nil:
		return err
	}
	c.w.Header().Set("Location", "/v1/operations/"+url.PathEscape(r.ID))
	if started {
		return c.answer(http.StatusAccepted, op)
	}
	return c.answer(http.StatusOK, op)
}

// requestOf is what a submission asks for. Its ID is the Idempotency-Key, or is
// made here.
func (s *Server) requestOf(c *call, asked submission) (ops.Request, error) {
	key, err := c.key()
	if err != nil {
		return ops.Request{}, err
	}
	kind, err := ops.ParseKind(asked.Kind)
	if err != nil {
		return ops.Request{}, err
	}
	r := ops.Request{
		ID: key, Kind: kind, Cluster: asked.Cluster, Nodes: asked.Nodes, Count: asked.Count,
		Strict: asked.Strict, Target: asked.Target, Hops: asked.Hops,
	}
	if r.ID == "" {
		if r.ID, err = ops.NewID(kind, asked.Cluster, time.Now()); err != nil {
			return ops.Request{}, err
		}
	}
	return r, r.Validate()
}

// subject makes sure that the caller of a request has the role on the cluster of
// the operation that it is about; one of a cluster that the caller may not look at
// does not exist for it.
func (s *Server) subject(c *call, least Role) error {
	if !saneKey(c.operation) { // also the workflow of a node: it is no operation
		return unknownOperation(c.operation)
	}
	r, err := s.o.Operations.Request(c.ctx(), c.operation)
	if err != nil {
		return err
	}
	if r.Cluster == "" || !c.principal.May(Viewer, r.Cluster) {
		return unknownOperation(c.operation)
	}
	return c.allowed(least, r.Cluster)
}

// operation is the one that a request is about, as it is now, if its caller may
// look at it.
func (s *Server) operation(c *call) (ops.Operation, error) {
	if err := s.subject(c, Viewer); err != nil {
		return ops.Operation{}, err
	}
	return s.o.Operations.Get(c.ctx(), c.operation)
}

func (s *Server) get(c *call) error {
	if err := c.query().err(); err != nil {
		return err
	}
	op, err := s.operation(c)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, op)
}

// list lists operations of the clusters that the caller may look at.
func (s *Server) list(c *call) error {
	q := c.query()
	f := ops.Filter{Cluster: q.text("cluster"), Kind: q.kind("kind"), Open: q.flag("open"), Limit: q.number("limit", 1, maxList)}
	if err := q.err(); err != nil {
		return err
	}
	names, all := c.principal.clusters()
	switch {
	case f.Cluster != "":
		if err := c.allowed(Viewer, f.Cluster); err != nil {
			return err
		}
		names = []string{f.Cluster}
	case all:
		names = []string{""}
	}
	found := operationList{Operations: []ops.Operation{}}
	for _, name := range names {
		f.Cluster = name
		some, err := s.o.Operations.List(c.ctx(), f)
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
	if limit := cmp.Or(f.Limit, defaultList); len(found.Operations) > limit {
		found.Operations = found.Operations[:limit]
	}
	return c.answer(http.StatusOK, found)
}

// defaultList is how many operations are listed when nobody says.
const defaultList = 100

// errWaited ends a wait that has lasted as long as was asked for.
var errWaited = errors.New("waited long enough")

// wait answers when an operation is over, the time is, or the server is cordoned.
func (s *Server) wait(c *call) error {
	q := c.query()
	timeout := q.duration("timeout", defaultWait, leastWait, mostWait)
	if err := q.err(); err != nil {
		return err
	}
	last, err := s.operation(c)
	if err != nil {
		return err
	}
	if last.State.Over() {
		return c.answer(http.StatusOK, waitAnswer{Type: lineEnd, Operation: last})
	}
	ctx, err := s.hold(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errWaited)
	defer cancel()
	err = s.o.Operations.Watch(ctx, last.ID, func(op ops.Operation) { last = op })
	switch {
	case err == nil:
		return c.answer(http.StatusOK, waitAnswer{Type: lineEnd, Operation: last})
	case c.ctx().Err() == nil && c.cordoned.Err() != nil:
		setRetryAfter(c.w.Header(), retrySoon)
		c.w.Header().Set("Connection", "close")
		return c.answer(http.StatusOK, waitAnswer{Type: lineRetry, Operation: last})
	case c.ctx().Err() == nil && errors.Is(context.Cause(ctx), errWaited):
		return c.answer(http.StatusOK, waitAnswer{Type: lineTimeout, Operation: last})
	}
	return err
}

// cancel asks an operation to take back what it did.
func (s *Server) cancel(c *call) error {
	if _, err := s.steeringOf(c, &struct{}{}); err != nil {
		return err
	}
	if err := s.subject(c, Operator); err != nil {
		return err
	}
	if err := s.o.Operations.Cancel(c.ctx(), c.operation); err != nil {
		return err
	}
	op, err := s.o.Operations.Get(c.ctx(), c.operation)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, op)
}

// actions are what the last part of a route stands for.
var actions = map[string]ops.Action{"pause": ops.Pause, "resume": ops.Resume, "retry": ops.RetryNow, "skip-node": ops.SkipNode}

// steer is the handler of an action.
func steer(word string) func(*Server, *call) error {
	return func(s *Server, c *call) error {
		var asked steering
		key, err := s.steeringOf(c, &asked)
		if err != nil {
			return err
		}
		action := actions[word]
		if action == ops.SkipNode && asked.Node == "" {
			return &ops.RequestError{Faults: []string{`field "node" is required: the node to leave out`}}
		}
		if err := s.subject(c, Operator); err != nil {
			return err
		}
		said, err := s.o.Operations.Steer(c.ctx(), c.operation, ops.Steering{Action: action, Node: asked.Node, Key: key})
		if err != nil {
			return err
		}
		return c.answer(http.StatusOK, steered{Operation: c.operation, Action: action, Node: asked.Node, Answer: said})
	}
}

// steeringOf reads the key and the body, which may be left out, of a request that
// steers an operation.
func (s *Server) steeringOf(c *call, into any) (key string, err error) {
	if key, err = c.key(); err != nil {
		return "", err
	}
	if err := c.query().err(); err != nil {
		return "", err
	}
	return key, c.body(into, true)
}

// kindOf is the kind that a plan is asked for; only two can be foreseen.
func kindOf(q *query) workflows.Kind {
	kind := q.kind("kind")
	if kind != workflows.KindUpgrade && kind != workflows.KindScaleDown && len(q.faults) == 0 {
		q.fault(`parameter "kind" must be upgrade or scale-down`)
	}
	return kind
}
