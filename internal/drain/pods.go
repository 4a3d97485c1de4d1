package drain

import (
	"fmt"
	"strings"
	"time"

	core "k8s.io/api/core/v1"

	"ebb/internal/cluster"
	"ebb/internal/operation"
)

// pod is a pod that has to leave the node, and what has happened to it so far.
type pod struct {
	*core.Pod // newest version seen

	action action
	shown  bool // the watch has shown it, so that it is gone when the watch does not any more

	returned  bool // it has come back: others of its workload were here and have begun to leave
	requested bool // its eviction has been requested before
	inFlight  bool // its eviction is in flight
	probe     bool // that one is a probe
	accepted  bool // its eviction was accepted
	gone      bool // it has ended
	skipped   bool // it is terminating, and not waited for

	refusal   string    // why its eviction was refused last, when no budget explains it; "" = it was not
	refusals  int       // such refusals in a row
	conflict  bool      // the last one came while several budgets matched
	notBefore time.Time // of its next eviction

	said string // what the output has said last of why it is held

	matching []pdb // the budgets that the API server checks before it evicts the pod; only in a snapshot
}

// left reports whether the drain is finished with the pod.
func (p pod) left() bool { return p.gone || p.skipped }

// evictable reports whether its eviction is still to be requested.
func (p pod) evictable() bool {
	return p.action != await && !p.left() && !p.inFlight && !p.accepted && p.DeletionTimestamp == nil
}

// repaired reports whether the last refusal does not count any more: it came while
// several budgets matched, and now at most one does.
func (p pod) repaired() bool { return p.conflict && len(p.matching) <= 1 }

// retryAt returns the earliest time of its next eviction; zero = now.
func (p pod) retryAt() time.Time {
	if p.repaired() {
		return time.Time{}
	}
	return p.notBefore
}

// lastRefusal returns why its eviction was refused last; "" when it was not, or when
// that does not count any more.
func (p pod) lastRefusal() string {
	if p.repaired() {
		return ""
	}
	return p.refusal
}

func (p pod) ref() cluster.PodRef {
	return cluster.PodRef{Namespace: p.Namespace, Name: p.Name, UID: p.UID}
}

// refused records a refusal that no budget explains; message may be empty.
func (p *pod) refused(message string, retryAfter time.Duration, now time.Time, jitter float64) {
	p.refusal = message
	p.refusals++
	p.notBefore = now.Add(max(retryAfter, backoff(p.refusals, firstRetry, lastRetry, jitter)))
}

// update keeps the newest version of the pod. A version without a deletionTimestamp
// after one with it is an older one.
func (p *pod) update(seen *core.Pod, s Settings, daemonSetExists func(namespace, name string) bool) {
	if p.Pod == seen || p.Pod != nil && p.DeletionTimestamp != nil && seen.DeletionTimestamp == nil {
		return
	}
	p.Pod, p.action = seen, actionFor(seen, s, daemonSetExists)
}

// byName sorts pods.
func byName(a, b *core.Pod) int { return strings.Compare(podName(a), podName(b)) }

// Tiers are evicted one after the other: the critical pods when all others have ended.
const (
	ordinary = iota
	critical
)

// criticalPriority is the priority of system-cluster-critical, the lowest of those that
// Kubernetes reserves for system components.
const criticalPriority = 2_000_000_000

// tierOf returns the tier of a pod.
func tierOf(pod *core.Pod) int {
	if pod.Spec.Priority != nil && *pod.Spec.Priority >= criticalPriority ||
		pod.Spec.PriorityClassName == "system-cluster-critical" || pod.Spec.PriorityClassName == "system-node-critical" {
		return critical
	}
	return ordinary
}

// stuckAfter is how long after the end of its grace period a terminating pod is
// reported as blocked: the kubelet needs a moment to delete it.
const stuckAfter = 3 * time.Second

// overdue returns how long ago the grace period of a terminating pod has ended;
// negative when it has not. The deletionTimestamp is the end of the grace period.
func overdue(pod *core.Pod, now time.Time) time.Duration { return now.Sub(pod.DeletionTimestamp.Time) }

// stuck returns why a terminating pod whose grace period is over is still there.
func stuck(pod *core.Pod, node *core.Node, now time.Time) operation.BlockedPod {
	b := operation.BlockedPod{Pod: podName(pod)}
	b.Reason = fmt.Sprintf("still terminating %s after its grace period", overdue(pod, now).Truncate(time.Second))
	if len(pod.Finalizers) > 0 {
		b.Reason += "; finalizers: " + strings.Join(pod.Finalizers, ", ")
		b.Advice = "find out why the owner of the finalizer does not take it away"
	}
	ready, why := nodeReady(node)
	b.Reason += "; node Ready: " + why
	if !ready && b.Advice == "" {
		b.Advice = "the kubelet cannot end it: repair the node, or set drain.skipWaitForDeleteTimeout"
	}
	return b
}

// nodeReady reports whether the node is Ready, and its Ready condition in words.
func nodeReady(node *core.Node) (bool, string) {
	if node != nil {
		for _, c := range node.Status.Conditions {
			if c.Type != core.NodeReady {
				continue
			}
			if c.Status == core.ConditionTrue || c.Reason == "" {
				return c.Status == core.ConditionTrue, string(c.Status)
			}
			return false, fmt.Sprintf("%s (%s)", c.Status, c.Reason)
		}
	}
	return false, "Unknown"
}
