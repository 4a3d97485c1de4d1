package drain

import (
	"fmt"
	"strings"
	"time"

	"ebb/internal/operation"

	"k8s.io/apimachinery/pkg/types"
)

// progress returns where the attempt stands, without its output.
func (s snapshot) progress(now time.Time) operation.DrainProgress {
	p := operation.DrainProgress{Node: s.name, Blocked: s.blocked(now, false)}
	for _, pod := range s.pods {
		p.Total++
		if pod.accepted {
			p.Evicted++
		}
		if pod.left() {
			p.Gone++
		} else {
			p.Waiting++
		}
	}
	return p
}

// remaining returns all pods that have not left, each with the reason.
func (s snapshot) remaining(now time.Time) []operation.BlockedPod { return s.blocked(now, true) }

// skipped returns the names of the pods that were not waited for.
func (s snapshot) skipped() (names []string) {
	for _, p := range s.pods {
		if p.skipped {
			names = append(names, podName(p.Pod))
		}
	}
	return names
}

// warnings returns what stays behind on the node though the drain goes through.
func (s snapshot) warnings() (texts []string) {
	for _, w := range s.workloads {
		if text := w.warning(); text != "" {
			texts = append(texts, text)
		}
	}
	return texts
}

// blocked returns the pods that are blocked; with all, also those that only need more
// time.
func (s snapshot) blocked(now time.Time, all bool) (list []operation.BlockedPod) {
	_, held, _ := s.evictions(now)
	holds := map[types.UID]hold{}
	for _, h := range held {
		holds[h.pod] = h
	}
	tier := s.tier()
	for _, p := range s.pods {
		if p.left() {
			continue
		}
		b := s.blockedPod(p, holds[p.UID], now, all)
		if b.Reason == "" && p.DeletionTimestamp == nil && !p.accepted && tierOf(p.Pod) == tier {
			b.Reason = s.api.unavailable(now)
		}
		if b.Reason == "" && all {
			b.Reason = notEvictedYet(p)
		}
		if b.Reason != "" {
			list = append(list, b)
		}
	}
	if !all {
		list = append(list, s.recreated(func(workload) bool { return true })...)
	}
	return list
}

// blockedPod returns what is known of the pod itself; the reason may be empty.
func (s snapshot) blockedPod(p pod, h hold, now time.Time, all bool) operation.BlockedPod {
	now = now.Add(s.ahead)
	switch {
	case p.action == forbid:
		return whyForbidden(p.Pod, s.settings)
	case p.DeletionTimestamp != nil && overdue(p.Pod, now) > stuckAfter:
		return stuck(p.Pod, s.node, now)
	case (p.DeletionTimestamp != nil || p.accepted) && all:
		return operation.BlockedPod{Pod: podName(p.Pod), Reason: terminating(p, now)}
	case p.DeletionTimestamp != nil || p.accepted:
		return operation.BlockedPod{}
	case len(h.budgets) > 0:
		b := blockedBy(p.Pod, h.budgets, s.neighbours[p.Namespace], now)
		if h.message != "" && !strings.Contains(b.Reason, h.message) {
			b.Reason += "; the API server says: " + h.message
		}
		return b
	}
	return operation.BlockedPod{Pod: podName(p.Pod), Reason: h.message}
}

// terminating describes a pod whose grace period is not over.
func terminating(p pod, now time.Time) string {
	if p.DeletionTimestamp == nil {
		return "evicted, not terminating yet"
	}
	return fmt.Sprintf("terminating, %s of its grace period left", max(0, -overdue(p.Pod, now)).Round(time.Second))
}

// notEvictedYet describes a pod whose turn has not come.
func notEvictedYet(p pod) string {
	if tierOf(p.Pod) == critical {
		return "not evicted yet: critical pods go after all others have ended"
	}
	return "not evicted yet"
}
