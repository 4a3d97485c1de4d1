package drain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"ebb/internal/operation"

	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// pdb is a PodDisruptionBudget and its compiled selector.
type pdb struct {
	*policy.PodDisruptionBudget
	selector labels.Selector
}

// selectors caches the compiled selector of each budget, by UID.
type selectors map[types.UID]compiled

type compiled struct {
	generation int64
	selector   labels.Selector
}

// compile returns the budgets with their selectors.
func (s selectors) compile(budgets []*policy.PodDisruptionBudget) []pdb {
	list := make([]pdb, len(budgets))
	for i, b := range budgets {
		c, known := s[b.UID]
		if !known || c.generation != b.Generation {
			selector, err := meta.LabelSelectorAsSelector(b.Spec.Selector)
			if err != nil {
				selector = labels.Nothing() // the API server ignores such a budget as well
			}
			c = compiled{generation: b.Generation, selector: selector}
			s[b.UID] = c
		}
		list[i] = pdb{PodDisruptionBudget: b, selector: c.selector}
	}
	return list
}

// matching returns those of the namespace's budgets that the API server checks before it
// evicts the pod, by name. It checks none for a pod that is not running yet or any more,
// and none for an unready pod when its only budget allows the eviction of unhealthy pods.
func matching(pod *core.Pod, budgets []pdb) (list []pdb) {
	if pod.DeletionTimestamp != nil || pod.Status.Phase == core.PodPending ||
		pod.Status.Phase == core.PodSucceeded || pod.Status.Phase == core.PodFailed {
		return nil
	}
	for _, b := range budgets {
		if b.selector.Matches(labels.Set(pod.Labels)) {
			list = append(list, b)
		}
	}
	if len(list) == 1 && !isReady(pod) && allowsUnhealthyEviction(list[0].PodDisruptionBudget) {
		return nil
	}
	slices.SortFunc(list, func(a, b pdb) int { return strings.Compare(a.Name, b.Name) })
	return list
}

func isReady(pod *core.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c core.PodCondition) bool {
		return c.Type == core.PodReady && c.Status == core.ConditionTrue
	})
}

// allowsUnhealthyEviction reports whether a budget allows the eviction of unready pods
// whatever its disruptionsAllowed.
func allowsUnhealthyEviction(b *policy.PodDisruptionBudget) bool {
	if b.Spec.UnhealthyPodEvictionPolicy != nil && *b.Spec.UnhealthyPodEvictionPolicy == policy.AlwaysAllow {
		return true
	}
	return b.Status.CurrentHealthy >= b.Status.DesiredHealthy && b.Status.DesiredHealthy > 0
}

// blockedBy returns why the budgets do not allow the eviction of a pod now, and what to
// change when waiting alone cannot help.
func blockedBy(pod *core.Pod, budgets []pdb, around neighbourhood, now time.Time) operation.BlockedPod {
	b := operation.BlockedPod{Pod: podName(pod), Budget: budgetNames(budgets)}
	if len(budgets) > 1 {
		b.Reason = fmt.Sprintf("%d budgets select it, and the API server evicts no pod with more than one", len(budgets))
		b.Advice = "change their selectors so that one is left"
		return b
	}
	budget := budgets[0]
	b.Reason = budgetStatus(budget.PodDisruptionBudget)
	b.Queued = budget.Status.ObservedGeneration >= budget.Generation && budget.Status.DisruptionsAllowed > 0
	if neverAllows(budget.PodDisruptionBudget) {
		b.Reason += fmt.Sprintf("; it never allows an eviction (%s, %d pods expected)",
			budgetLimit(budget.PodDisruptionBudget), budget.Status.ExpectedPods)
		b.Advice = "raise maxUnavailable or lower minAvailable, or run more replicas"
		return b
	}
	if budget.Status.CurrentHealthy > budget.Status.DesiredHealthy {
		return b
	}
	for _, s := range around.stalls(budget, now) {
		b.Reason += "; " + s.reason
		b.Advice = cmp.Or(b.Advice, s.advice)
	}
	return b
}

func budgetNames(budgets []pdb) string {
	names := make([]string, len(budgets))
	for i, b := range budgets {
		names[i] = b.Namespace + "/" + b.Name
	}
	return strings.Join(names, ", ")
}

// key returns the name under which the ledger knows the budget.
func (b pdb) key() types.NamespacedName {
	return types.NamespacedName{Namespace: b.Namespace, Name: b.Name}
}

// budgetStatus returns the status of a budget in words.
func budgetStatus(b *policy.PodDisruptionBudget) string {
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

// neverAllows reports whether a budget requires every expected pod to be healthy.
func neverAllows(b *policy.PodDisruptionBudget) bool {
	return b.Status.ObservedGeneration >= b.Generation && b.Status.ExpectedPods > 0 &&
		b.Status.DesiredHealthy >= b.Status.ExpectedPods
}

// budgetLimit returns the limit in the spec of a budget.
func budgetLimit(b *policy.PodDisruptionBudget) string {
	switch {
	case b.Spec.MaxUnavailable != nil:
		return "maxUnavailable: " + b.Spec.MaxUnavailable.String()
	case b.Spec.MinAvailable != nil:
		return "minAvailable: " + b.Spec.MinAvailable.String()
	}
	return "no limit set"
}

// failingPods returns those of the pods, at most three, that do not get ready by waiting
// alone, each with the reason: a container of theirs keeps failing.
func failingPods(pods []*core.Pod) (names []string) {
	for _, p := range pods {
		if p.DeletionTimestamp != nil || isReady(p) {
			continue
		}
		if why := waitingReason(p); why != "" {
			names = append(names, p.Name+" ("+why+")")
		}
	}
	slices.Sort(names)
	if n := len(names) - 3; n > 0 {
		names = append(names[:3], fmt.Sprintf("%d more", n))
	}
	return names
}

// waitingReason returns the reason in the waiting state of a container of the pod, when
// it is one that waiting alone does not cure; otherwise "".
func waitingReason(pod *core.Pod) string {
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
