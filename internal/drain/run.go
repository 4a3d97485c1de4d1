package drain

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb/internal/cluster"
)

// Run makes one attempt. It returns an *Error when the node could not be
// emptied before the deadline or never can be, ctx.Err() as soon as ctx ends,
// leaving things as they are, and a Result otherwise; a node whose Node object
// is gone counts as empty. Another Run at the same node goes on from where this
// one stopped: pods that are terminating are waited for, not evicted again.
func Run(ctx context.Context, req Request) (Result, error) {
	r := newRun(req)
	limited, cancel := context.WithDeadline(ctx, req.Deadline)
	err := r.stages(limited)
	cancel()
	r.close()
	r.publish()
	switch {
	case err == nil, errors.Is(err, errNodeGone):
		return r.result(errors.Is(err, errNodeGone)), nil
	case ctx.Err() != nil:
		return Result{}, ctx.Err()
	case errors.Is(err, context.DeadlineExceeded):
		return Result{}, r.failure(ErrTimeout, r.timeoutReason())
	}
	return Result{}, err
}

// errNodeGone ends an attempt well: without its Node object there is nothing to drain.
var errNodeGone = errors.New("the node object is gone")

// run is the state of one attempt. Only the goroutine of Run touches it; the
// requests it has under way answer through channels.
type run struct {
	req       Request
	settings  Settings
	watch     *cluster.Watch
	sub       *cluster.Subscription
	selectors selectors
	started   time.Time

	pods     map[types.UID]*pod // every pod that has to leave or had to
	owners   map[string]*owner  // of those pods, to notice the ones that come back
	cordoned bool               // the watch has shown the node cordoned

	evictions chan eviction // answers
	sending   int
	lists     chan listing // answers
	listing   bool
	api       health
	news      news
	requests  sync.WaitGroup
	confirmed bool // a list from the API server has shown the node empty

	out      output
	warnings []string
	reported reported
}

func newRun(req Request) *run {
	req.Settings = req.Settings.withDefaults()
	return &run{
		req: req, settings: req.Settings, selectors: selectors{}, started: time.Now(),
		pods: map[types.UID]*pod{}, owners: map[string]*owner{}, news: news{versions: map[types.UID]string{}},
		evictions: make(chan eviction, req.Settings.Parallel), lists: make(chan listing, 1),
		out: newOutput(req),
	}
}

// stages is an attempt from beginning to end.
func (r *run) stages(ctx context.Context) error {
	for _, stage := range []func(context.Context) error{
		r.connect, // the shared watches are there
		r.admit,   // the node is cordoned
		r.empty,   // its pods are evicted and have ended
		r.detach,  // their volumes are free for the next node
	} {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := stage(ctx); err != nil {
			return err
		}
	}
	return nil
}

// close waits for the requests under way, for which there is not much time any
// more, and takes what this attempt has counted off the shared ledger.
func (r *run) close() {
	r.requests.Wait()
	if r.sub == nil {
		return
	}
	r.sub.Close()
	r.watch.Ledger.Forget(r.uids())
}

func (r *run) connect(ctx context.Context) error {
	var watch *cluster.Watch
	err := r.during(ctx, func(ctx context.Context) (err error) {
		watch, err = r.req.Cluster.Watch(ctx)
		return err
	})
	if err != nil { // only when ctx is over
		r.out.printf("%v", err)
		return ctx.Err()
	}
	r.watch = watch
	r.sub = r.watch.Subscribe(r.req.Node)
	return nil
}

// admit makes sure that the node is cordoned. The watch may not show yet what
// the caller has just done, so a doubt is settled by asking.
func (r *run) admit(ctx context.Context) error {
	node := r.watch.Node(r.req.Node)
	for node == nil || !node.Spec.Unschedulable {
		var err error
		asked := r.during(ctx, func(ctx context.Context) error {
			node, err = r.req.Cluster.Client.CoreV1().Nodes().Get(ctx, r.req.Node, meta.GetOptions{})
			return err
		})
		switch {
		case asked == nil && node.Spec.Unschedulable:
			return nil
		case asked == nil:
			return r.failure(ErrUncordoned, "the node is not cordoned, so evicted pods could come back to it; cordon it first")
		case apierrors.IsNotFound(asked):
			return errNodeGone
		}
		node = nil
		r.fault(asked, 0)
		if err := r.pauseFor(ctx, time.Until(r.api.retryAt)); err != nil {
			return err
		}
	}
	return nil
}

// empty is the drain proper: look, decide, send, wait for news.
func (r *run) empty(ctx context.Context) error {
	for !r.confirmed {
		now := time.Now()
		r.observe(now)
		if err := r.verdict(); err != nil {
			return err
		}
		again := r.launch(ctx, now)
		r.refresh(ctx, now)
		if err := r.wait(ctx, earliest(again, r.report(now))); err != nil {
			return err
		}
	}
	return nil
}

// verdict ends the attempt when waiting longer is of no use.
func (r *run) verdict() error {
	node := r.watch.Node(r.req.Node)
	switch {
	case node == nil && r.cordoned:
		r.out.printf("node %s is gone", r.req.Node)
		return errNodeGone
	case node != nil && node.Spec.Unschedulable:
		r.cordoned = true
	case node != nil && r.cordoned:
		return r.failure(ErrUncordoned, "somebody uncordoned the node during the drain; nothing more was evicted")
	}
	if refusals := r.refusals(); len(refusals) > 0 {
		err := r.failure(ErrRefused, fmt.Sprintf("%d pods may not be evicted with these settings", len(refusals)))
		err.Blocked = refusals
		return err
	}
	now := time.Now()
	if returning := r.returning(func(o *owner) bool { return o.hopeless(now) }); len(returning) > 0 {
		err := r.failure(ErrReturning, fmt.Sprintf("evicted pods have come back to the cordoned node %d times", maxReturns))
		err.Blocked = returning
		return err
	}
	return nil
}

// wait returns when there is news, or at the given time.
func (r *run) wait(ctx context.Context, until time.Time) error {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-r.sub.C:
		r.api.heard = time.Now()
	case e := <-r.evictions:
		r.settle(e)
	case l := <-r.lists:
		r.merge(l)
	case <-timer.C:
	}
	return nil
}

// during runs one slow request and reports meanwhile; f must not touch what
// reports are made of.
func (r *run) during(ctx context.Context, f func(context.Context) error) error {
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	tick := time.NewTicker(reportAtLeast)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-tick.C:
			r.publish()
		}
	}
}

func (r *run) pauseFor(ctx context.Context, d time.Duration) error {
	return r.during(ctx, func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d):
			return nil
		}
	})
}

func (r *run) result(nodeGone bool) Result {
	p := r.progress()
	return Result{
		Node: r.req.Node, Evicted: p.Evicted, Gone: p.Gone, Skipped: r.skipped(), NodeGone: nodeGone,
		Warnings: r.warnings, Output: p.Output, Took: time.Since(r.started),
	}
}

func (r *run) failure(cause error, reason string) *Error {
	return &Error{Node: r.req.Node, Reason: reason, Blocked: r.left(), Output: r.out.tail(), Cause: cause}
}

func (r *run) timeoutReason() string {
	if !r.started.Before(r.req.Deadline) {
		return "no time was left for an attempt, nothing was evicted"
	}
	return fmt.Sprintf("not empty after %s", time.Since(r.started).Round(time.Second))
}

// node is the newest known state of the node; nil when there is none.
func (r *run) node() *core.Node {
	if r.watch == nil {
		return nil
	}
	return r.watch.Node(r.req.Node)
}

// earliest of the times that are set.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
