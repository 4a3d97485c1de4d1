package drain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// Tiers: a tier starts when the pods of the one before have ended.
const (
	ordinary = iota
	critical
)

// criticalPriority is the value of system-cluster-critical, the lowest that
// Kubernetes keeps for itself.
const criticalPriority = 2_000_000_000

func tierOf(pod *core.Pod) int {
	if pod.Spec.Priority != nil && *pod.Spec.Priority >= criticalPriority ||
		pod.Spec.PriorityClassName == "system-cluster-critical" || pod.Spec.PriorityClassName == "system-node-critical" {
		return critical
	}
	return ordinary
}

// selectors keeps the compiled selector of each budget.
type selectors map[types.UID]compiled

type compiled struct {
	generation int64
	selector   labels.Selector
}

func (s selectors) of(b *policy.PodDisruptionBudget) labels.Selector {
	if c, ok := s[b.UID]; ok && c.generation == b.Generation {
		return c.selector
	}
	selector, err := meta.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil {
		selector = labels.Nothing() // the API server passes over such a budget as well
	}
	s[b.UID] = compiled{generation: b.Generation, selector: selector}
	return selector
}

// standing are the budgets that the API server will ask before it lets the pod
// go, by name. None are asked for a pod that does not run yet or any more, and
// none for an unready one that its only budget does not protect.
func (s selectors) standing(pod *core.Pod, budgets []*policy.PodDisruptionBudget) []*policy.PodDisruptionBudget {
	if pod.DeletionTimestamp != nil || pod.Status.Phase == core.PodPending ||
		pod.Status.Phase == core.PodSucceeded || pod.Status.Phase == core.PodFailed {
		return nil
	}
	var covering []*policy.PodDisruptionBudget
	for _, b := range budgets {
		if s.of(b).Matches(labels.Set(pod.Labels)) {
			covering = append(covering, b)
		}
	}
	if len(covering) == 1 && !isReady(pod) && freesUnready(covering[0]) {
		return nil
	}
	slices.SortFunc(covering, func(a, b *policy.PodDisruptionBudget) int { return strings.Compare(a.Name, b.Name) })
	return covering
}

func isReady(pod *core.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c core.PodCondition) bool {
		return c.Type == core.PodReady && c.Status == core.ConditionTrue
	})
}

// freesUnready tells whether a budget lets unready pods go whatever it allows.
func freesUnready(b *policy.PodDisruptionBudget) bool {
	if b.Spec.UnhealthyPodEvictionPolicy != nil && *b.Spec.UnhealthyPodEvictionPolicy == policy.AlwaysAllow {
		return true
	}
	return b.Status.CurrentHealthy >= b.Status.DesiredHealthy && b.Status.DesiredHealthy > 0
}

// blockedBy says why the budgets keep a pod, and what to do when waiting alone
// cannot help. peers are the pods that a budget selects.
func blockedBy(pod *core.Pod, budgets []*policy.PodDisruptionBudget, peers func(*policy.PodDisruptionBudget) []*core.Pod) BlockedPod {
	b := BlockedPod{Pod: podName(pod), Budget: budgetNames(budgets)}
	if len(budgets) > 1 {
		b.Reason = fmt.Sprintf("%d budgets select it, and the API server evicts no pod with more than one", len(budgets))
		b.Advice = "change their selectors so that one is left"
		return b
	}
	budget := budgets[0]
	b.Reason = needs(budget)
	b.Queued = budget.Status.ObservedGeneration >= budget.Generation && budget.Status.DisruptionsAllowed > 0
	broken := brokenOf(peers(budget))
	switch {
	case neverAllows(budget):
		b.Reason += fmt.Sprintf("; it never allows an eviction (%s, %d pods expected)", terms(budget), budget.Status.ExpectedPods)
		b.Advice = "raise maxUnavailable or lower minAvailable, or run more replicas"
	case len(broken) > 0 && budget.Status.CurrentHealthy <= budget.Status.DesiredHealthy:
		b.Reason += "; not ready: " + strings.Join(broken, ", ")
		b.Advice = "repair these pods, or set unhealthyPodEvictionPolicy: AlwaysAllow so that unready pods may be evicted"
	}
	return b
}

func budgetNames(budgets []*policy.PodDisruptionBudget) string {
	names := make([]string, len(budgets))
	for i, b := range budgets {
		names[i] = b.Namespace + "/" + b.Name
	}
	return strings.Join(names, ", ")
}

func needs(b *policy.PodDisruptionBudget) string {
	for _, c := range b.Status.Conditions {
		if c.Type == policy.DisruptionAllowedCondition && c.Reason == policy.SyncFailedReason {
			return "the disruption controller cannot work it out: " + c.Message
		}
	}
	if b.Status.ObservedGeneration < b.Generation {
		return "the disruption controller has not worked it out yet"
	}
	if b.Status.DisruptionsAllowed > 0 {
		return fmt.Sprintf("allows %d more, and so many are being evicted", b.Status.DisruptionsAllowed)
	}
	return fmt.Sprintf("needs %d healthy pods and has %d", b.Status.DesiredHealthy, b.Status.CurrentHealthy)
}

// neverAllows tells whether a budget wants every expected pod healthy.
func neverAllows(b *policy.PodDisruptionBudget) bool {
	return b.Status.ObservedGeneration >= b.Generation && b.Status.ExpectedPods > 0 &&
		b.Status.DesiredHealthy >= b.Status.ExpectedPods
}

func terms(b *policy.PodDisruptionBudget) string {
	switch {
	case b.Spec.MaxUnavailable != nil:
		return "maxUnavailable: " + b.Spec.MaxUnavailable.String()
	case b.Spec.MinAvailable != nil:
		return "minAvailable: " + b.Spec.MinAvailable.String()
	}
	return "no limit set"
}

// brokenOf lists at most three pods that are not ready and will not be by
// waiting alone: a container of theirs keeps failing.
func brokenOf(pods []*core.Pod) (names []string) {
	for _, p := range pods {
		if why := failing(p); why != "" && !isReady(p) && p.DeletionTimestamp == nil {
			names = append(names, p.Name+" ("+why+")")
		}
	}
	slices.Sort(names)
	if n := len(names) - 3; n > 0 {
		names = append(names[:3], fmt.Sprintf("%d more", n))
	}
	return names
}

// failing is the reason for which a container of the pod waits, when it is one
// that time alone does not cure.
func failing(pod *core.Pod) string {
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if c.State.Waiting == nil {
			continue
		}
		switch c.State.Waiting.Reason {
		case "CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "InvalidImageName",
			"CreateContainerConfigError", "CreateContainerError", "RunContainerError":
			return c.State.Waiting.Reason
		}
	}
	return ""
}

// stuckAfter is how long past its grace period a pod may take before it is
// called stuck: the kubelet needs a moment to report the end.
const stuckAfter = 3 * time.Second

// overdue is how long a terminating pod has been past its grace period; the API
// server adds that period to the deletion timestamp. Negative: it has time left.
func overdue(pod *core.Pod, now time.Time) time.Duration { return now.Sub(pod.DeletionTimestamp.Time) }

// stuck describes a terminating pod that is past its grace period.
func stuck(pod *core.Pod, node *core.Node, now time.Time) BlockedPod {
	b := BlockedPod{Pod: podName(pod)}
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

// nodeReady is the node's Ready condition in words.
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
