package drain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"ebb/internal/operation"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	scheduling "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
)

const (
	// maxRecreations is how many times over the pods of a workload may be created again
	// on the node before the drain gives up on those that always will be.
	maxRecreations = 3
	// schedulerLag is how long a scheduler may bind pods to the node that do not
	// tolerate its cordon, because it has not heard of it: one whose watch was cut, by
	// an API server that was restarted, tries again for so long.
	schedulerLag = time.Minute
)

// workload counts the pods of one controller (ReplicaSet, StatefulSet, …) on the node.
type workload struct {
	name      string    // namespace/Kind/name
	initial   int       // pods when it was first seen
	recreated int       // pods since then
	rounds    int       // looks at the node that have shown such a pod for the first time
	since     time.Time // of the first of them
	tolerates bool      // one of them tolerates the cordon
	left      int       // of them that were left on the node
}

// recreations returns how many times over the workload's pods have been created again.
func (w workload) recreations() int { return w.recreated / w.initial }

// endless reports whether its pods will be created again on the node until somebody
// changes the workload.
func (w workload) endless(now time.Time) bool {
	return w.recreations() >= maxRecreations && (w.tolerates || now.Sub(w.since) >= schedulerLag)
}

// warning returns what is said of the workload's pods that were left on the node; "" when
// none was.
func (w workload) warning() string {
	if w.left == 0 {
		return ""
	}
	how := "which they tolerate"
	if !w.tolerates {
		how = fmt.Sprintf("though they do not tolerate it, for the %d. time", maxRecreations+1)
	}
	return fmt.Sprintf("pods of %s come back to the cordoned node, %s, and are left there (drain.returning: leave)", w.name, how)
}

// add records pods that are new on the node. The eviction of those that a scheduler will
// bind elsewhere as soon as it has heard of the cordon is delayed.
func (w *workload) add(pods []*pod, now time.Time, jitter float64) {
	if w.recreated == 0 {
		w.since = now
	}
	w.recreated, w.rounds = w.recreated+len(pods), w.rounds+1
	for _, p := range pods {
		if toleratesCordon(p.Pod) {
			w.tolerates = true
			continue
		}
		p.notBefore = now.Add(backoff(w.rounds, firstRetry, lastRetry, jitter))
	}
}

// workloadOf returns the name of the pod's workload; "" when it has no controller.
func workloadOf(p *core.Pod) string {
	c := meta.GetControllerOf(p)
	if c == nil {
		return ""
	}
	return p.Namespace + "/" + c.Kind + "/" + c.Name
}

// toleratesCordon reports whether a scheduler would bind the pod to a cordoned node.
func toleratesCordon(p *core.Pod) bool {
	cordon := []core.Taint{{Key: core.TaintNodeUnschedulable, Effect: core.TaintEffectNoSchedule}}
	_, repelled := scheduling.FindMatchingUntoleratedTaint(klog.Background(), cordon, p.Spec.Tolerations, nil, true)
	return !repelled
}

// leave returns the pods that have come back to the node and that neither an eviction nor
// time will keep away from it: those that tolerate the cordon, and those of workloads whose
// pods are bound to it over and over without. A drain is for the pods that were there.
func (s snapshot) leave(now time.Time) (uids []types.UID) {
	if s.settings.FailReturning {
		return nil
	}
	for _, p := range s.pods {
		if p.returned && !p.left() && !p.inFlight && !p.accepted && p.DeletionTimestamp == nil &&
			(toleratesCordon(p.Pod) || s.endless(p, now)) {
			uids = append(uids, p.UID)
		}
	}
	return uids
}

// endless reports whether the pod's workload is.
func (s snapshot) endless(p pod, now time.Time) bool {
	return slices.ContainsFunc(s.workloads, func(w workload) bool { return w.name == workloadOf(p.Pod) && w.endless(now) })
}

// recreated returns the remaining pods of those workloads whose pods have been created
// again on the node and that chosen reports true for.
func (s snapshot) recreated(chosen func(workload) bool) (blocked []operation.BlockedPod) {
	for _, w := range s.workloads {
		if w.recreations() == 0 || !chosen(w) {
			continue
		}
		_, controller, _ := strings.Cut(w.name, "/")
		for _, p := range s.pods {
			if !p.left() && workloadOf(p.Pod) == w.name {
				blocked = append(blocked, operation.BlockedPod{
					Pod:    podName(p.Pod),
					Reason: fmt.Sprintf("pods of %s come back to the cordoned node (%d times so far)", controller, w.recreations()),
					Advice: "take away its toleration of node.kubernetes.io/unschedulable or its nodeName, scale it down, or make it a DaemonSet",
				})
			}
		}
	}
	slices.SortFunc(blocked, func(a, b operation.BlockedPod) int { return strings.Compare(a.Pod, b.Pod) })
	return blocked
}
