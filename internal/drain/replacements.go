package drain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"ebb/internal/cluster"
)

// neighbourhood is what decides whether a budget recovers: the pods of its namespace, and
// what their controllers could not create.
type neighbourhood struct {
	pods     []*core.Pod
	failures []*core.Event // of the creation of pods
}

// neighboursIn returns what the watch shows of a namespace.
func neighboursIn(w *cluster.Watch, namespace string) neighbourhood {
	return neighbourhood{pods: w.PodsMatching(namespace, labels.Everything()), failures: w.FailedCreates(namespace)}
}

const (
	// failureAge is how long a failed creation is told. A ReplicaSet tries again after 17
	// minutes at most.
	failureAge = 20 * time.Minute
	// wordsLimit is how many characters of a message of a scheduler or a quota are told.
	wordsLimit = 300
)

// stall is a reason why a budget does not recover by waiting alone, and what to do.
type stall struct{ reason, advice string }

// stalls returns why the pods that would let a budget recover do not get ready: their
// creation was refused, no node takes them, or a container of theirs keeps failing.
func (n neighbourhood) stalls(b pdb, now time.Time) (list []stall) {
	selected := slices.DeleteFunc(slices.Clone(n.pods), func(p *core.Pod) bool {
		return !b.selector.Matches(labels.Set(p.Labels))
	})
	if refused := n.notCreated(selected, now); refused != "" {
		list = append(list, stall{refused, "raise the quota, or mend what refuses the pods of the controller"})
	}
	if waiting := unscheduled(selected); waiting != "" {
		list = append(list, stall{waiting, "make room for it, or change what keeps it from the other nodes"})
	}
	if failing := failingPods(selected); len(failing) > 0 {
		list = append(list, stall{"not ready: " + strings.Join(failing, ", "),
			"repair these pods, or set unhealthyPodEvictionPolicy: AlwaysAllow so that unready pods may be evicted"})
	}
	return list
}

// notCreated returns the newest refusal of a pod that a controller of these pods has not
// been able to create since; "" when there is none.
func (n neighbourhood) notCreated(pods []*core.Pod, now time.Time) string {
	newest := map[types.UID]time.Time{} // creation of each controller's newest pod
	for _, p := range pods {
		if owner := meta.GetControllerOf(p); owner != nil {
			newest[owner.UID] = later(newest[owner.UID], p.CreationTimestamp.Time)
		}
	}
	var last *core.Event
	for _, e := range n.failures {
		created, ours := newest[e.InvolvedObject.UID]
		at := timeOf(e)
		if ours && !at.Before(created) && now.Sub(at) < failureAge && (last == nil || at.After(timeOf(last))) {
			last = e
		}
	}
	if last == nil {
		return ""
	}
	return fmt.Sprintf("%s %s cannot create its replacement: %s", last.InvolvedObject.Kind, last.InvolvedObject.Name, words(last.Message))
}

// timeOf returns when an event has happened last.
func timeOf(e *core.Event) time.Time {
	at := later(e.LastTimestamp.Time, e.EventTime.Time)
	if e.Series != nil {
		at = later(at, e.Series.LastObservedTime.Time)
	}
	return at
}

// unscheduled returns which of the pods is bound to no node and why, in the scheduler's own
// words, and how many more there are; "" when there is none.
func unscheduled(pods []*core.Pod) string {
	var first *core.Pod
	why, n := "", 0
	for _, p := range pods {
		message := schedulingFailure(p)
		if message == "" {
			continue
		}
		if n++; first == nil || p.Name < first.Name {
			first, why = p, message
		}
	}
	switch n {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("%s is Pending: %s", first.Name, words(why))
	}
	return fmt.Sprintf("%s and %d more are Pending: %s", first.Name, n-1, words(why))
}

// schedulingFailure returns why a pod could not be scheduled; "" when it was, or when
// nothing has tried yet.
func schedulingFailure(p *core.Pod) string {
	if p.DeletionTimestamp != nil || p.Spec.NodeName != "" {
		return ""
	}
	for _, c := range p.Status.Conditions {
		if c.Type == core.PodScheduled && c.Status == core.ConditionFalse {
			return cmp.Or(c.Message, c.Reason)
		}
	}
	return ""
}

// words returns a message on one line, and only its beginning when it is long.
func words(message string) string {
	text := strings.Join(strings.Fields(message), " ")
	if runes := []rune(text); len(runes) > wordsLimit {
		return string(runes[:wordsLimit]) + " …"
	}
	return text
}
