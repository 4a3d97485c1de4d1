package drain

import (
	"context"
	"time"

	core "k8s.io/api/core/v1"
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
)

// health is how far the API server and the watches can be trusted.
type health struct {
	faults  int       // requests in a row that got no answer
	retryAt time.Time // no request before
	doubt   bool      // an eviction may have been done without our knowing
	heard   time.Time // last news from the watch or a list
}

func (h *health) down() bool { return h.doubt || h.faults > 0 }

func (h *health) answered() { h.faults = 0 }

// fault notes a request without an answer. Nothing more is evicted until a list
// of the node's pods has shown what became of it.
func (r *run) fault(err error, atLeast time.Duration) {
	h := &r.api
	if h.faults == 0 {
		r.out.printf("no answer from the API server, trying again: %v", err)
	}
	h.faults++
	h.doubt = true
	h.retryAt = time.Now().Add(max(atLeast, backoff(h.faults, firstAPIRetry, lastAPIRetry)))
}

// throttle obeys a 429 that comes from priority and fairness.
func (r *run) throttle(after time.Duration, message string) {
	r.api.retryAt = time.Now().Add(max(after, defaultThrottle))
	r.out.printf("the API server has too much to do, trying again in %s: %s", max(after, defaultThrottle), message)
}

// listing is the answer to a list of the node's pods.
type listing struct {
	pods  []core.Pod
	known map[types.UID]bool // when it was asked for
	err   error
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
	r.requests.Go(func() {
		l := listing{known: known}
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
	}
	r.api = health{heard: time.Now()}
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
