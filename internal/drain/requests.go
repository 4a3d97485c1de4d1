package drain

import (
	"context"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
)

// evictionGrace is how long an eviction in flight may go on when the attempt ends. The API
// server updates first the budget and then the pod; one that is cut off in between has
// spent the budget's allowance, and the disruption controller takes two minutes to give
// that back.
const evictionGrace = 5 * time.Second

// evict requests an eviction; its answer goes to r.evictions.
func (r *run) evict(ctx context.Context, e eviction) {
	p := r.pods[e.pod]
	if !p.requested { // a probe is repeated
		r.out.printf("evicting pod %s", podName(p.Pod))
	}
	p.requested, p.inFlight, p.probe = true, true, e.probe
	r.inFlight++
	target, client, grace := p.Pod, r.req.Cluster.Client, r.settings.GracePeriod
	r.requests.Go(func() {
		ctx, cancel := withGrace(ctx, evictionGrace)
		defer cancel()
		e.err = createEviction(ctx, client, target, grace)
		r.evictions <- e
	})
}

// withGrace returns a context that ends so much later than ctx.
func withGrace(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(grace, cancel)
		context.AfterFunc(longer, func() { timer.Stop() })
	})
	return longer, func() { stop(); cancel() }
}

// readAnswer is the answer to a read.
type readAnswer struct {
	kind read
	err  error
	node *core.Node // of readNode

	// Of readPods:
	pods    []core.Pod
	known   map[types.UID]bool // pods when it was requested
	unknown int                // evictions without a known outcome when it was requested
}

// listPods requests the list of the node's pods; its answer goes to r.reads.
func (r *run) listPods(ctx context.Context) {
	r.reading = true
	a := readAnswer{kind: readPods, known: make(map[types.UID]bool, len(r.pods)), unknown: r.stale.unknown}
	for uid := range r.pods {
		a.known[uid] = true
	}
	pods := r.req.Cluster.Client.CoreV1().Pods(meta.NamespaceAll)
	options := meta.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", r.req.Node).String()}
	r.requests.Go(func() {
		list, err := pods.List(ctx, options)
		if a.err = err; err == nil {
			a.pods = list.Items
		}
		r.reads <- a
	})
}

// readNode requests the Node object; its answer goes to r.reads.
func (r *run) readNode(ctx context.Context) {
	r.reading = true
	a := readAnswer{kind: readNode}
	nodes := r.req.Cluster.Client.CoreV1().Nodes()
	r.requests.Go(func() {
		a.node, a.err = nodes.Get(ctx, r.req.Node, meta.GetOptions{})
		r.reads <- a
	})
}
