package drain

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Delays before a refusal that no change in the watch can lift is tried again:
// they double from the first to the last, and each is up to half as long again.
const (
	firstRetry = 1 * time.Second
	lastRetry  = 10 * time.Second
)

// eviction is the answer to one eviction request.
type eviction struct {
	pod    *pod
	budget types.NamespacedName // whose allowance it was counted against; zero = none
	err    error
}

// launch sends the evictions that may go now, and returns when it should be
// called again if nothing changes (zero = no such time).
func (r *run) launch(ctx context.Context, now time.Time) (again time.Time) {
	for _, p := range r.queue(now) {
		budget, free, at := r.consider(p, now)
		again = earliest(again, at)
		if !free || r.sending >= r.settings.Parallel || r.api.down() || now.Before(r.api.retryAt) {
			continue
		}
		var key types.NamespacedName
		if budget != nil {
			ok, at := r.charge(budget, p, now)
			if !ok {
				r.keep(p, budget)
				again = earliest(again, at)
				continue
			}
			key = types.NamespacedName{Namespace: budget.Namespace, Name: budget.Name}
		}
		r.send(ctx, p, key)
	}
	if now.Before(r.api.retryAt) {
		again = earliest(again, r.api.retryAt)
	}
	return again
}

// charge asks for one eviction under a budget, and says when to ask again if
// nothing changes.
func (r *run) charge(budget *policy.PodDisruptionBudget, p *pod, now time.Time) (ok bool, again time.Time) {
	if at := r.news.assure(budget); now.Before(at) {
		return false, at
	}
	return r.watch.Ledger.Take(budget, p.ref(), now)
}

// tier is the one whose pods go now.
func (r *run) tier() int {
	tier := critical
	for _, p := range r.pods {
		if !p.left() {
			tier = min(tier, tierOf(p.Pod))
		}
	}
	return tier
}

// queue are the pods of the current tier that still have to be evicted. Those
// whose budget lets them go in most waves come first, because that takes longest.
func (r *run) queue(now time.Time) []*pod {
	tier := r.tier()
	var queue []*pod
	chain := map[types.UID]int{}
	for _, p := range r.sorted() {
		if p.left() || p.sent || p.evicted || p.DeletionTimestamp != nil || tierOf(p.Pod) != tier {
			continue
		}
		queue = append(queue, p)
		p.cover(r.selectors.standing(p.Pod, r.watch.Budgets(p.Namespace)))
		r.news.note(p.standing, now)
		if len(p.standing) == 1 {
			chain[p.standing[0].UID]++
		}
	}
	waves := func(p *pod) int {
		if len(p.standing) != 1 {
			return 0
		}
		budget := p.standing[0]
		atOnce := max(int(budget.Status.ExpectedPods-budget.Status.DesiredHealthy), 1)
		return (chain[budget.UID] + atOnce - 1) / atOnce
	}
	slices.SortStableFunc(queue, func(a, b *pod) int { return cmp.Compare(waves(b), waves(a)) })
	return queue
}

// consider decides about one pod: whether an eviction may go now as far as the
// pod is concerned, under which budget, and otherwise when to look again.
func (r *run) consider(p *pod, now time.Time) (budget *policy.PodDisruptionBudget, free bool, again time.Time) {
	switch {
	case r.watch.NamespaceTerminating(p.Namespace):
		p.trouble, p.budgets = "its namespace is being deleted, which will end it", nil
		r.tell(p, p.trouble)
		return nil, false, time.Time{}
	case now.Before(p.retryAt):
		return nil, false, p.retryAt
	case len(p.standing) > 1 && p.tries == 0: // known to be refused
		r.retryLater(p, 0, now)
		r.keep(p, p.standing...)
		return nil, false, p.retryAt
	case len(p.standing) == 1:
		budget = p.standing[0]
	}
	return budget, true, time.Time{}
}

// keep notes what keeps a pod, and says it once.
func (r *run) keep(p *pod, budgets ...*policy.PodDisruptionBudget) {
	p.budgets = budgets
	if names := budgetNames(budgets); p.told != names {
		p.told = names
		r.out.printf("pod %s", blockedBy(p.Pod, budgets, r.peers))
	}
}

func (r *run) tell(p *pod, trouble string) {
	if p.told != trouble {
		p.told = trouble
		r.out.printf("pod %s: %s", podName(p.Pod), trouble)
	}
}

func (r *run) send(ctx context.Context, p *pod, budget types.NamespacedName) {
	if !p.asked { // a budget may have to be asked many times
		r.out.printf("evicting pod %s", podName(p.Pod))
	}
	p.sent, p.asked, p.trouble = true, true, ""
	r.sending++
	target, client, grace := p.Pod, r.req.Cluster.Client, r.settings.GracePeriod
	r.requests.Go(func() {
		ctx, cancel := outlast(ctx, answerTime)
		defer cancel()
		r.evictions <- eviction{pod: p, budget: budget, err: evict(ctx, client, target, grace)}
	})
}

// answerTime is how long an eviction that is under way gets when the attempt ends.
// The API server writes the budget first and then the pod; one that is cut off in
// between leaves the budget charged, and the disruption controller waits two
// minutes before it gives that back.
const answerTime = 5 * time.Second

// outlast is a context that ends so much later than ctx.
func outlast(ctx context.Context, by time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(by, cancel)
		context.AfterFunc(longer, func() { timer.Stop() })
	})
	return longer, func() { stop(); cancel() }
}

// settle takes the answer to an eviction.
func (r *run) settle(e eviction) {
	p, now := e.pod, time.Now()
	p.sent = false
	r.sending--
	a, retryAfter, message := classify(e.err)
	if e.budget.Name != "" {
		if a == granted {
			r.watch.Ledger.Granted(e.budget, p.UID)
		} else {
			r.watch.Ledger.Refused(e.budget, p.UID, a == overBudget)
		}
	}
	switch a {
	case granted:
		p.evicted, p.tries = true, 0
		r.api.answered()
	case gone:
		r.ended(p)
	case unreachable:
		r.fault(e.err, 0)
	case throttled:
		r.throttle(retryAfter, message)
	case replaced:
		r.api.suspect()
		r.retryLater(p, 0, now)
	case overBudget:
		if e.budget.Name == "" { // the watch knew of no budget that would forbid it
			r.retry(p, message, 0, now)
		}
	default:
		r.retry(p, message, retryAfter, now)
	}
}

// retry notes a refusal that no budget explains.
func (r *run) retry(p *pod, trouble string, after time.Duration, now time.Time) {
	r.retryLater(p, after, now)
	p.trouble = trouble
	if len(p.standing) <= 1 {
		p.budgets = nil // it is not the budget
	}
	r.tell(p, trouble)
}

func (r *run) retryLater(p *pod, atLeast time.Duration, now time.Time) {
	p.tries++
	p.retryAt = now.Add(max(atLeast, backoff(p.tries, firstRetry, lastRetry)))
}

// backoff is the delay before the nth try again, n from 1.
func backoff(n int, first, last time.Duration) time.Duration {
	d := first << min(n-1, 10)
	return min(d+rand.N(d/2), last-rand.N(last/4)) //nolint:gosec // jitter
}

// refusedBy joins what is known to keep a pod for the blocked list.
func (r *run) refusedBy(p *pod) BlockedPod {
	if len(p.budgets) > 0 {
		b := blockedBy(p.Pod, p.budgets, r.peers)
		if p.trouble != "" && !strings.Contains(b.Reason, p.trouble) {
			b.Reason += "; the API server says: " + p.trouble
		}
		return b
	}
	return BlockedPod{Pod: podName(p.Pod), Reason: p.trouble}
}
