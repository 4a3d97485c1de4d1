package drain

import (
	"maps"
	"slices"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

// observe records what the watch shows of the node and its pods.
func (r *run) observe(now time.Time) {
	if node := r.watch.Node(r.req.Node); node != nil && node.Spec.Unschedulable {
		r.cordon = cordonShown
	}
	shown := r.watch.PodsOn(r.req.Node)
	r.addPods(shown, now)
	present := make(map[types.UID]bool, len(shown))
	for _, s := range shown {
		present[s.UID] = true
		if p := r.pods[s.UID]; p != nil {
			p.shown = true
		}
	}
	for uid, p := range r.pods {
		if p.shown && !present[uid] {
			r.podGone(p)
		}
	}
}

// addPods records the pods of the node that have to leave.
func (r *run) addPods(seen []*core.Pod, now time.Time) {
	slices.SortFunc(seen, byName)
	added := map[string][]*pod{} // by workload
	for _, s := range seen {
		if r.stay[s.UID] {
			continue
		}
		p := r.pods[s.UID]
		if p == nil {
			p = &pod{}
		}
		p.update(s, r.settings, r.watch.DaemonSetExists)
		if p.action == ignore && !p.inFlight && !p.accepted { // perhaps it has been labelled meanwhile
			delete(r.pods, s.UID)
		}
		if r.pods[s.UID] != nil || p.action == ignore {
			continue
		}
		r.pods[s.UID] = p
		if name := workloadOf(s); name != "" {
			added[name] = append(added[name], p)
		}
	}
	for name, pods := range added {
		r.addToWorkload(name, pods, now)
	}
}

// addToWorkload records pods that are new on the node. They have come back when pods of
// their workload have begun to leave; before that, the watch has only been late.
func (r *run) addToWorkload(name string, pods []*pod, now time.Time) {
	w := r.workloads[name]
	switch {
	case w == nil:
		r.workloads[name] = &workload{name: name, initial: len(pods)}
		return
	case !r.leaving(name):
		w.initial += len(pods)
		return
	}
	for _, p := range pods {
		p.returned = true
	}
	w.add(pods, now, r.jitter())
	if w.left == 0 {
		r.out.printf("pods of %s have come back to the cordoned node", name)
	}
}

// leaving reports whether a pod of the workload has begun to leave.
func (r *run) leaving(workload string) bool {
	for _, p := range r.pods {
		if workloadOf(p.Pod) == workload && (p.gone || p.accepted || p.DeletionTimestamp != nil) {
			return true
		}
	}
	return false
}

// leave records that pods which have come back stay on the node.
func (r *run) leave(uids []types.UID) {
	for _, uid := range uids {
		p := r.pods[uid]
		r.stay[uid] = true
		delete(r.pods, uid)
		w := r.workloads[workloadOf(p.Pod)]
		if w.left++; w.left == 1 {
			r.out.printf("%s", w.warning())
		}
	}
}

// podGone records the end of a pod.
func (r *run) podGone(p *pod) {
	switch {
	case p.gone:
		return
	case p.accepted:
		r.out.printf("pod %s evicted", podName(p.Pod))
	default:
		r.out.printf("pod %s is gone", podName(p.Pod))
	}
	p.gone = true
}

// skip records that terminating pods are not waited for any longer.
func (r *run) skip(uids []types.UID) {
	_, why := nodeReady(r.watch.Node(r.req.Node))
	if r.req.MachineDown {
		why = "machine down"
	}
	for _, uid := range uids {
		p := r.pods[uid]
		p.skipped = true
		r.out.printf("pod %s not waited for: terminating for %s past its grace period, node Ready: %s",
			podName(p.Pod), r.settings.SkipWaitForDelete, why)
	}
}

// evictionAnswered records the answer to an eviction.
func (r *run) evictionAnswered(e eviction, now time.Time) {
	p := r.pods[e.pod]
	p.inFlight, p.probe = false, false
	p.refusal, p.conflict = "", e.conflict
	r.inFlight--
	a, retryAfter, message := classify(e.err)
	r.settle(e, a)
	switch a {
	case accepted:
		p.accepted, p.refusals = true, 0
		r.api.failures = 0
	case notFound:
		r.podGone(p)
	case unanswered:
		r.stale.unknown++
		r.apiFailed(e.err, 0, now)
	case throttled:
		r.api.throttled(retryAfter, message, now)
		r.out.printf("%s", r.api.problem)
	case replaced:
		r.stale.unknown++
		p.refused("", 0, now, r.jitter())
	case overBudget:
		if e.budget == nil && !e.signal { // the watch has shown no budget that would not allow it
			p.refused(message, 0, now, r.jitter())
		}
	case namespaceTerminating, otherError, refusedByWebhook:
		p.refused(message, retryAfter, now, r.jitter())
	}
}

// settle commits or aborts the reservation of an eviction.
func (r *run) settle(e eviction, a answer) {
	switch {
	case e.budget == nil:
	case a == accepted:
		r.watch.Ledger.Commit(e.budget.key(), e.pod)
	default:
		r.watch.Ledger.Abort(e.budget.key(), e.pod, a == overBudget)
	}
}

// apiFailed records a request without an answer.
func (r *run) apiFailed(err error, retryAfter time.Duration, now time.Time) {
	first := r.api.failures == 0
	r.api.failed(err, retryAfter, now, r.jitter())
	if first {
		r.out.printf("%s", r.api.problem)
	}
}

// readAnswered records the answer to a read.
func (r *run) readAnswered(a readAnswer, now time.Time) {
	r.reading = false
	if a.err != nil && (a.kind == readPods || !apierrors.IsNotFound(a.err)) {
		_, retryAfter, _ := classify(a.err)
		r.apiFailed(a.err, retryAfter, now)
		return
	}
	if r.api.answered() {
		r.out.printf("the API server answers again")
	}
	switch {
	case a.kind == readPods:
		r.podsListed(a, now)
	case r.cordon != cordonUnknown: // the watch has been faster
	case a.err != nil:
		r.cordon = nodeNotFound
	case a.node.Spec.Unschedulable:
		r.cordon = cordonRead
	default:
		r.cordon = notCordoned
	}
}

// podsListed records a list of the node's pods. It is newer than what the watch shows, or
// as new.
func (r *run) podsListed(a readAnswer, now time.Time) {
	r.stale.listed(a.unknown, now)
	present := make(map[types.UID]bool, len(a.pods))
	seen := make([]*core.Pod, 0, len(a.pods))
	for i := range a.pods {
		present[a.pods[i].UID] = true
		if a.pods[i].Spec.NodeName == r.req.Node {
			seen = append(seen, &a.pods[i])
		}
	}
	r.addPods(seen, now)
	for uid, p := range r.pods {
		if a.known[uid] && !present[uid] {
			r.podGone(p)
		}
	}
	if !slices.ContainsFunc(slices.Collect(maps.Values(r.pods)), func(p *pod) bool { return !p.left() }) {
		r.emptied = now
	}
}
