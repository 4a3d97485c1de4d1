package drain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	scheduling "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"ebb/internal/cluster"
)

const (
	// maxReturns is how often the pods of one owner may come back before the drain
	// gives up on those that would do so for ever.
	maxReturns = 3
	// behindFor is how long a scheduler may put pods on the node that do not tolerate
	// its cordon, because it has not heard of it: one whose watch was cut, by an API
	// server that was restarted, tries again for so long.
	behindFor = time.Minute
)

// pod is one pod that has to leave.
type pod struct {
	*core.Pod // newest version seen

	fate   fate
	cached bool // the watch has shown it, so that its absence there means its end

	sent    bool // an eviction is under way
	asked   bool // one was sent before
	evicted bool // an eviction was accepted
	gone    bool // ended
	skipped bool // terminating, and not waited for

	standing []*policy.PodDisruptionBudget // that the API server will ask
	budgets  []*policy.PodDisruptionBudget // that keep it now
	trouble  string                        // the last refusal that no budget explains
	tries    int                           // such refusals in a row
	retryAt  time.Time                     // not before
	told     string                        // what the output says of it, so as to say it once
}

func (p *pod) left() bool { return p.gone || p.skipped }

func (p *pod) ref() cluster.PodRef {
	return cluster.PodRef{Namespace: p.Namespace, Name: p.Name, UID: p.UID}
}

// update keeps the newest version. A deletion is not taken back: whoever shows
// the pod without it is behind.
func (p *pod) update(seen *core.Pod, fateOf func(*core.Pod) fate) {
	if p.Pod == seen || p.Pod != nil && p.DeletionTimestamp != nil && seen.DeletionTimestamp == nil {
		return
	}
	p.Pod, p.fate = seen, fateOf(seen)
}

// cover notes the budgets that stand in the way now. What keeps the pod is that
// until it is known better: not sending an eviction teaches nothing.
func (p *pod) cover(standing []*policy.PodDisruptionBudget) {
	if len(p.standing) > 1 && len(standing) <= 1 {
		p.tries, p.retryAt = 0, time.Time{} // somebody has repaired it
	}
	p.standing = standing
	switch {
	case len(standing) > 1:
		p.budgets = standing
	case len(p.budgets) > 1, budgetNames(p.budgets) != budgetNames(standing):
		p.budgets = nil
	case len(p.budgets) == 1:
		p.budgets = standing // its newest version
	}
}

// observe takes the node's pods from the watch.
func (r *run) observe(now time.Time) {
	seen := r.watch.PodsOn(r.req.Node)
	r.take(seen)
	present := make(map[types.UID]bool, len(seen))
	for _, s := range seen {
		present[s.UID] = true
		if p := r.pods[s.UID]; p != nil {
			p.cached = true
		}
	}
	for uid, p := range r.pods {
		if p.cached && !present[uid] {
			r.ended(p)
		}
	}
	r.skipHopeless(now)
}

// take notes the pods that have to leave among those on the node.
func (r *run) take(seen []*core.Pod) {
	slices.SortFunc(seen, func(a, b *core.Pod) int { return strings.Compare(podName(a), podName(b)) })
	fresh := map[string][]*pod{}
	fateOf := func(p *core.Pod) fate { return fateOf(p, r.settings, r.watch.DaemonSetExists) }
	for _, s := range seen {
		if p := r.pods[s.UID]; p != nil {
			p.update(s, fateOf)
			continue
		}
		p := &pod{}
		if p.update(s, fateOf); p.fate == stays {
			continue
		}
		r.pods[s.UID] = p
		r.confirmed = false
		if c := meta.GetControllerOf(s); c != nil {
			name := s.Namespace + "/" + c.Kind + "/" + c.Name
			fresh[name] = append(fresh[name], p)
		}
	}
	r.countOwners(fresh, time.Now())
}

// owner counts the pods of one controller on the node.
type owner struct {
	name      string
	first     int       // when it was first seen
	later     int       // since then
	rounds    int       // in which those have come
	since     time.Time // the first of them
	tolerates bool      // the cordon: they would come for ever
}

// returns is how many times over the owner's pods have come back.
func (o *owner) returns() int { return o.later / o.first }

// hopeless reports whether nothing but a change of the workload will help.
func (o *owner) hopeless(now time.Time) bool {
	return o.returns() >= maxReturns && (o.tolerates || now.Sub(o.since) >= behindFor)
}

// countOwners notes the pods that are new on the node. What comes back to it though
// it does not tolerate the cordon is given some time, for the scheduler to hear of it.
func (r *run) countOwners(fresh map[string][]*pod, now time.Time) {
	for name, pods := range fresh {
		o, known := r.owners[name]
		if !known {
			r.owners[name] = &owner{name: name, first: len(pods)}
			continue
		}
		if o.later == 0 {
			o.since = now
		}
		o.later, o.rounds = o.later+len(pods), o.rounds+1
		for _, p := range pods {
			if toleratesCordon(p.Pod) {
				o.tolerates = true
				continue
			}
			p.retryAt = now.Add(backoff(o.rounds, firstRetry, lastRetry))
		}
		r.out.printf("pods of %s have come back to the cordoned node", name)
	}
}

// toleratesCordon reports whether a scheduler would put a pod on a cordoned node.
func toleratesCordon(p *core.Pod) bool {
	cordon := []core.Taint{{Key: core.TaintNodeUnschedulable, Effect: core.TaintEffectNoSchedule}}
	_, repelled := scheduling.FindMatchingUntoleratedTaint(klog.Background(), cordon, p.Spec.Tolerations, nil, true)
	return !repelled
}

// returning are the pods that have come back, of the owners chosen.
func (r *run) returning(chosen func(*owner) bool) (blocked []BlockedPod) {
	for name, o := range r.owners {
		if o.returns() == 0 || !chosen(o) {
			continue
		}
		namespace, controller, _ := strings.Cut(name, "/")
		for _, p := range r.sorted() {
			if c := meta.GetControllerOf(p.Pod); !p.left() && p.Namespace == namespace && c != nil && c.Kind+"/"+c.Name == controller {
				blocked = append(blocked, BlockedPod{
					Pod:    podName(p.Pod),
					Reason: fmt.Sprintf("pods of %s come back to the cordoned node (%d times so far)", controller, o.returns()),
					Advice: "take away its toleration of node.kubernetes.io/unschedulable or its nodeName, scale it down, or make it a DaemonSet",
				})
			}
		}
	}
	slices.SortFunc(blocked, func(a, b BlockedPod) int { return strings.Compare(a.Pod, b.Pod) })
	return blocked
}

func (r *run) refusals() (blocked []BlockedPod) {
	for _, p := range r.sorted() {
		if p.fate == refused && !p.left() {
			blocked = append(blocked, refusal(p.Pod, r.settings))
		}
	}
	return blocked
}

// ended notes the end of a pod.
func (r *run) ended(p *pod) {
	if p.gone {
		return
	}
	p.gone = true
	if p.evicted {
		r.out.printf("pod %s evicted", podName(p.Pod))
		return
	}
	r.out.printf("pod %s is gone", podName(p.Pod))
}

// skipHopeless gives up waiting for terminating pods on a node that is down,
// when the settings say so.
func (r *run) skipHopeless(now time.Time) {
	limit := r.settings.SkipWaitForDelete
	ready, why := nodeReady(r.node())
	if limit <= 0 || ready && !r.req.MachineDown {
		return
	}
	if r.req.MachineDown {
		why = "machine down"
	}
	for _, p := range r.pods {
		if !p.left() && p.DeletionTimestamp != nil && overdue(p.Pod, now) > limit {
			p.skipped = true
			r.out.printf("pod %s not waited for: terminating for %s past its grace period, node Ready: %s", podName(p.Pod), limit, why)
		}
	}
}

// sorted are all pods by name.
func (r *run) sorted() []*pod {
	pods := make([]*pod, 0, len(r.pods))
	for _, p := range r.pods {
		pods = append(pods, p)
	}
	slices.SortFunc(pods, func(a, b *pod) int { return strings.Compare(podName(a.Pod), podName(b.Pod)) })
	return pods
}

func (r *run) skipped() (names []string) {
	for _, p := range r.sorted() {
		if p.skipped {
			names = append(names, podName(p.Pod))
		}
	}
	return names
}

func (r *run) uids() []types.UID {
	uids := make([]types.UID, 0, len(r.pods))
	for uid := range r.pods {
		uids = append(uids, uid)
	}
	return uids
}
