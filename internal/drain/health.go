package drain

import (
	"context"
	"fmt"
	"time"

	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// An API server that does not answer is tried again after 0.25 to 5 s: a
	// restart takes it 2 to 10 s.
	firstAPIRetry = 250 * time.Millisecond
	lastAPIRetry  = 5 * time.Second
	// defaultThrottle is for a 429 that does not say how long.
	defaultThrottle = time.Second
	// quiet is how long the watch may be silent before the API server is asked
	// for the node's pods: a watch can be broken without a sign.
	quiet = 30 * time.Second
	// vouched is how long news of any budget vouches for the others. One watch
	// shows them all, in order, so that as long as it talks a budget that allows
	// nothing need not be asked all the same: on a busy cluster a successor takes
	// longer to get ready than the ledger waits, and each such budget would refuse.
	vouched = 3 * time.Second
)

// health is how far the API server and the watches can be trusted.
type health struct {
	faults  int       // requests in a row that got no answer
	retryAt time.Time // no request before
	trouble string    // why
	doubt   bool      // an eviction may have been done without our knowing
	doubts  int       // how often there has been such doubt
	heard   time.Time // last news from the watch or a list
}

func (h *health) down() bool { return h.doubt || h.faults > 0 }

func (h *health) answered() { h.faults = 0 }

func (h *health) suspect() {
	h.doubt = true
	h.doubts++
}

// keeps is why no eviction is sent now, whatever the budgets allow; "" = nothing.
func (h *health) keeps(now time.Time) string {
	if h.faults > 0 || now.Before(h.retryAt) {
		return h.trouble
	}
	return ""
}

// fault notes a request without an answer. Nothing more is evicted until a list
// of the node's pods has shown what became of it.
func (r *run) fault(err error, atLeast time.Duration) {
	h := &r.api
	h.suspect()
	h.trouble = fmt.Sprintf("no answer from the API server, trying again: %v", err)
	if h.faults == 0 {
		r.out.printf("%s", h.trouble)
	}
	h.faults++
	h.retryAt = time.Now().Add(max(atLeast, backoff(h.faults, firstAPIRetry, lastAPIRetry)))
}

// throttle obeys a 429 that comes from priority and fairness: nobody's budget
// is in the way, and it says nothing about this pod more than about another.
func (r *run) throttle(after time.Duration, message string) {
	after = max(after, defaultThrottle)
	r.api.retryAt = time.Now().Add(after)
	r.api.trouble = fmt.Sprintf("the API server has too much to do, trying again in %s: %s", after, message)
	r.out.printf("%s", r.api.trouble)
}

// news is what the watch has last said of the budgets.
type news struct {
	versions map[types.UID]string
	at       time.Time
}

func (n *news) note(budgets []*policy.PodDisruptionBudget, now time.Time) {
	for _, b := range budgets {
		if n.versions[b.UID] != b.ResourceVersion {
			n.versions[b.UID], n.at = b.ResourceVersion, now
		}
	}
}

// assure is until when a budget is known to allow nothing; zero when it is not.
func (n *news) assure(b *policy.PodDisruptionBudget) time.Time {
	if b.Status.DisruptionsAllowed > 0 || b.Status.ObservedGeneration < b.Generation {
		return time.Time{}
	}
	return n.at.Add(vouched)
}

// listing is the answer to a list of the node's pods.
type listing struct {
	pods   []core.Pod
	known  map[types.UID]bool // when it was asked for
	doubts int                // when it was asked for: it cannot dispel later ones
	err    error
}

// refresh asks the API server itself for the node's pods when the watch is not
// enough: to see that the node is empty, to learn what became of a request
// without an answer, or because the watch has been silent for long.
func (r *run) refresh(ctx context.Context, now time.Time) {
	if r.api.heard.IsZero() {
		r.api.heard = now
	}
	silent := now.Sub(r.api.heard) >= quiet
	if r.listing || now.Before(r.api.retryAt) || !r.api.down() && !silent && (r.anyLeft() || r.sending > 0) {
		return
	}
	r.listing = true
	known := make(map[types.UID]bool, len(r.pods))
	for uid := range r.pods {
		known[uid] = true
	}
	pods := r.req.Cluster.Client.CoreV1().Pods(meta.NamespaceAll)
	options := meta.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", r.req.Node).String()}
	l := listing{known: known, doubts: r.api.doubts}
	r.requests.Go(func() {
		list, err := pods.List(ctx, options)
		if l.err = err; err == nil {
			l.pods = list.Items
		}
		r.lists <- l
	})
}

// merge takes the answer to a list. It is newer than what the watch shows, or
// as new.
func (r *run) merge(l listing) {
	r.listing = false
	if l.err != nil {
		_, after, _ := classify(l.err)
		r.fault(l.err, after)
		return
	}
	if r.api.faults > 0 {
		r.out.printf("the API server answers again")
		r.api.retryAt = time.Time{}
	}
	r.api.faults, r.api.doubt, r.api.heard = 0, r.api.doubts > l.doubts, time.Now()
	present := make(map[types.UID]bool, len(l.pods))
	seen := make([]*core.Pod, 0, len(l.pods))
	for i := range l.pods {
		present[l.pods[i].UID] = true
		if l.pods[i].Spec.NodeName == r.req.Node {
			seen = append(seen, &l.pods[i])
		}
	}
	r.take(seen)
	for uid, p := range r.pods {
		if l.known[uid] && !present[uid] {
			r.ended(p)
		}
	}
	r.confirmed = !r.anyLeft()
}

// anyLeft tells whether a pod still has to leave.
func (r *run) anyLeft() bool {
	for _, p := range r.pods {
		if !p.left() {
			return true
		}
	}
	return false
}
