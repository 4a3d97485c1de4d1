package drain

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"ebb/internal/cluster"
	"ebb/internal/operation"
)

// Run makes one attempt. It returns an *Error when the node could not be emptied before
// the deadline or never can be, ctx.Err() as soon as ctx ends, leaving things as they
// are, and a Result otherwise; a node whose Node object is gone counts as empty. Another
// Run at the same node goes on from where this one stopped: pods that are terminating are
// waited for, not evicted again.
func Run(ctx context.Context, req Request) (Result, error) {
	r := newRun(req)
	limited, cancel := context.WithDeadline(ctx, req.Deadline)
	v := verdict{outcome: goOn}
	if r.connect(limited) {
		v = r.drain(ctx, limited)
	}
	cancel()
	r.finish()
	r.reportNow()
	switch {
	case v.outcome == done:
		return r.result(v), nil
	case ctx.Err() != nil:
		return Result{}, ctx.Err()
	case v.outcome == goOn: // the deadline has passed before there was a watch
		v = r.snapshot(r.started).timedOut(time.Now())
	}
	return Result{}, r.failure(v)
}

// run is the state of one attempt. It sends, receives and reports; what to do is decided
// by next. Only the goroutine of Run touches it; requests are answered through channels.
type run struct {
	facts
	req       Request
	settings  Settings
	started   time.Time
	jitter    func() float64 // in [0, 1)
	watch     *cluster.Watch // nil = not there yet
	changes   *cluster.Subscription
	selectors selectors

	pods      map[types.UID]*pod   // every pod that has to leave or had to
	workloads map[string]*workload // of those pods, to notice the ones that come back
	stay      map[types.UID]bool   // pods that have come back and are left on the node

	evictions chan eviction // answered ones
	reads     chan readAnswer
	requests  sync.WaitGroup

	out         output
	saidVolumes string // volumes that the output has said last
	reported    reported
}

func newRun(req Request) *run {
	req.Settings = req.Settings.withDefaults()
	return &run{
		req: req, settings: req.Settings, started: time.Now(), jitter: rand.Float64, selectors: selectors{},
		facts: facts{stale: staleness{versions: map[types.UID]string{}}},
		pods:  map[types.UID]*pod{}, workloads: map[string]*workload{}, stay: map[types.UID]bool{},
		evictions: make(chan eviction, req.Settings.Parallel), reads: make(chan readAnswer, 1),
		out: newOutput(req),
	}
}

// connect waits for the shared watch, and reports meanwhile. It reports false when ctx
// ends before.
func (r *run) connect(ctx context.Context) bool {
	if ctx.Err() != nil {
		return false
	}
	connected := make(chan error, 1)
	var watch *cluster.Watch
	go func() {
		var err error
		watch, err = r.req.Cluster.Watch(ctx)
		connected <- err
	}()
	tick := time.NewTicker(reportAtLeast)
	defer tick.Stop()
	for {
		select {
		case err := <-connected:
			if err != nil { // only when ctx is over
				r.out.printf("%v", err)
				return false
			}
			r.watch, r.changes, r.stale.event = watch, watch.Subscribe(r.req.Node), time.Now()
			return true
		case <-tick.C:
			r.reportNow()
		}
	}
}

// drain looks, decides, acts and waits for news until the attempt is over or ctx ends.
// Requests end with limited, which ends at the deadline.
func (r *run) drain(ctx, limited context.Context) verdict {
	for {
		now := time.Now()
		if r.emptied.IsZero() {
			r.observe(now)
		}
		s := r.snapshot(now)
		d := next(s, now)
		if len(d.skip)+len(d.leave) > 0 {
			r.skip(d.skip)
			r.leave(d.leave)
			continue
		}
		r.say(s, d, now)
		if d.verdict.outcome != goOn {
			return d.verdict
		}
		if !r.act(limited, d, now) {
			continue
		}
		r.wait(ctx, earliest(d.wake, r.report(s, now)))
		if ctx.Err() != nil {
			return verdict{outcome: goOn}
		}
	}
}

// act sends the requests decided on. It reports false when another drain has been faster
// to reserve an eviction, so that the decision has to be made anew.
func (r *run) act(ctx context.Context, d decision, now time.Time) bool {
	for _, e := range d.evict {
		if !r.reserve(e, now) {
			return false
		}
		r.evict(ctx, e)
	}
	switch d.read {
	case readNode:
		r.readNode(ctx)
	case readPods:
		r.listPods(ctx)
	case readNothing:
	}
	return true
}

// reserve reserves an eviction with the ledger.
func (r *run) reserve(e eviction, now time.Time) bool {
	switch {
	case e.budget == nil:
		return true
	case e.probe:
		return r.watch.Ledger.Probe(e.budget.key(), r.pods[e.pod].ref(), e.balance, now)
	}
	return r.watch.Ledger.Reserve(e.budget.key(), r.pods[e.pod].ref(), now)
}

// wait returns when there is news, or at the given time.
func (r *run) wait(ctx context.Context, until time.Time) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-r.changes.C:
		r.stale.event = time.Now()
	case e := <-r.evictions:
		r.evictionAnswered(e, time.Now())
	case a := <-r.reads:
		r.readAnswered(a, time.Now())
	case <-timer.C:
	}
}

// finish waits for the requests in flight, which get evictionGrace at most, records what
// became of the evictions, and drops this attempt's reservations from the shared ledger.
func (r *run) finish() {
	r.requests.Wait()
	for r.inFlight > 0 {
		r.evictionAnswered(<-r.evictions, time.Now())
	}
	if r.changes == nil {
		return
	}
	r.changes.Close()
	uids := make([]types.UID, 0, len(r.pods))
	for uid := range r.pods {
		uids = append(uids, uid)
	}
	r.watch.Ledger.Forget(uids)
}

func (r *run) result(v verdict) Result {
	s := r.snapshot(time.Now())
	p := s.progress(time.Now())
	result := Result{
		DrainLeft: operation.DrainLeft{Node: r.req.Node, Skipped: s.skipped(), Warnings: s.warnings()},
		Evicted:   p.Evicted, Gone: p.Gone, NodeGone: v.nodeGone,
		Output: r.out.tail(), Took: time.Since(r.started),
	}
	if v.warning != "" {
		result.Warnings = append(result.Warnings, v.warning)
	}
	return result
}

func (r *run) failure(v verdict) *Error {
	if v.blocked == nil {
		now := time.Now()
		v.blocked = r.snapshot(now).remaining(now)
	}
	return &Error{Node: r.req.Node, Reason: v.reason, Blocked: v.blocked, Output: r.out.tail(), Cause: v.cause}
}
