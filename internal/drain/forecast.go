package drain

import (
	"fmt"
	"slices"
	"strings"

	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"ebb/internal/capacity"
	"ebb/internal/cluster"
)

// Forecast is what a drain of a node would meet now.
type Forecast struct {
	Node    string       `json:"node"`
	Moves   int          `json:"moves"`             // pods that would be evicted, or are terminating already
	Stays   int          `json:"stays"`             // mirror pods and those of DaemonSets
	Blocked []BlockedPod `json:"blocked,omitempty"` // would have to wait, or keep the drain from ending
	Risks   []string     `json:"risks,omitempty"`   // what the drain would do and nobody may want
}

// Room tells whether the pods that drains of these nodes move find room elsewhere.
func Room(w *cluster.Watch, nodes []string, s Settings) capacity.Verdict {
	return capacity.Check(w.Nodes(), w.PodsMatching("", labels.Everything()),
		func(node string) bool { return slices.Contains(nodes, node) },
		func(pod *core.Pod) bool { return fateOf(pod, s, w.DaemonSetExists) != stays })
}

// Foresee tells what a drain of a node would meet, without touching anything.
func Foresee(w *cluster.Watch, node string, s Settings) Forecast {
	f := Forecast{Node: node}
	known := selectors{}
	pods := w.PodsOn(node)
	slices.SortFunc(pods, func(a, b *core.Pod) int { return strings.Compare(podName(a), podName(b)) })
	for _, pod := range pods {
		switch fateOf(pod, s, w.DaemonSetExists) {
		case stays:
			f.Stays++
			continue
		case refused:
			f.Blocked = append(f.Blocked, refusal(pod, s))
		case moves:
			budgets := known.standing(pod, w.Budgets(pod.Namespace))
			if len(budgets) > 1 || len(budgets) == 1 && budgets[0].Status.DisruptionsAllowed < 1 {
				f.Blocked = append(f.Blocked, blockedBy(pod, budgets, func(b *policy.PodDisruptionBudget) []*core.Pod {
					return w.PodsMatching(b.Namespace, known.of(b))
				}))
			}
			f.Risks = append(f.Risks, risks(w, pod)...)
		}
		f.Moves++
	}
	return f
}

// risks says what the eviction of a pod costs even when nothing blocks it.
func risks(w *cluster.Watch, pod *core.Pod) (texts []string) {
	if pod.DeletionTimestamp != nil || pod.Status.Phase == core.PodSucceeded || pod.Status.Phase == core.PodFailed {
		return nil
	}
	owner := meta.GetControllerOf(pod)
	switch {
	case owner == nil:
		texts = append(texts, podName(pod)+" has no controller: nothing creates it again")
	case replicas(w, pod.Namespace, owner.UID) == 1:
		texts = append(texts, fmt.Sprintf("%s is the only pod of %s %s: it is down until it runs elsewhere", podName(pod), owner.Kind, owner.Name))
	}
	if names := emptyDirs(pod); len(names) > 0 {
		texts = append(texts, fmt.Sprintf("%s loses the data in its emptyDir volumes (%s)", podName(pod), strings.Join(names, ", ")))
	}
	if names := hostPaths(pod); len(names) > 0 {
		texts = append(texts, fmt.Sprintf("%s leaves data behind on the node (hostPath %s)", podName(pod), strings.Join(names, ", ")))
	}
	return texts
}

// replicas counts the pods that a controller has anywhere.
func replicas(w *cluster.Watch, namespace string, controller types.UID) (n int) {
	for _, pod := range w.PodsMatching(namespace, labels.Everything()) {
		if owner := meta.GetControllerOf(pod); owner != nil && owner.UID == controller && pod.DeletionTimestamp == nil {
			n++
		}
	}
	return n
}

func hostPaths(pod *core.Pod) (names []string) {
	for _, v := range pod.Spec.Volumes {
		if v.HostPath != nil {
			names = append(names, v.Name)
		}
	}
	return names
}
