package drain

import (
	"fmt"
	"slices"
	"strings"

	"ebb/internal/operation"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Objection is a reason not to drain a node as things are. An operation warns of it before
// it touches the first node, and with --strict it refuses.
type Objection struct {
	Subject string `json:"subject"` // what on which node
	Reason  string `json:"reason"`
}

// String returns the objection as a line.
func (o Objection) String() string { return o.Subject + ": " + o.Reason }

// AllObjections returns the objections to a drain, its blocked pods included.
func (f Forecast) AllObjections() (list []Objection) {
	for _, b := range f.Blocked {
		about := operation.BlockedPod{Reason: b.Reason, Advice: b.Advice, Budget: b.Budget}
		list = append(list, Objection{Subject: subject(b.Pod, f.Node), Reason: strings.TrimLeft(about.String(), ": ")})
	}
	return append(list, f.Objections...)
}

func subject(what, node string) string { return what + " on " + node }

const (
	reasonBare = "no controller creates it again: it is lost"
	reasonWish = "its owner asks that it be left alone"
)

// objections returns the objections to the eviction of a pod of a node.
func objections(node string, pod *core.Pod) (list []Objection) {
	if !serves(pod) {
		return nil
	}
	if meta.GetControllerOf(pod) == nil {
		list = append(list, Objection{Subject: subject(podName(pod), node), Reason: reasonBare})
	}
	if w := wish(pod); w != "" {
		list = append(list, Objection{Subject: subject(podName(pod), node), Reason: reasonWish + " (" + w + ")"})
	}
	return list
}

// concentrated returns the workloads all of whose pods, two or more, are on the node.
// Those whose budget keeps a pod running while the others move are no objection.
func (f *Forecaster) concentrated(node string, pods []*core.Pod) (list []Objection) {
	here, guarded := map[types.UID]int{}, map[types.UID]bool{}
	var owners []types.UID
	names := map[types.UID]string{}
	for _, pod := range pods {
		owner := meta.GetControllerOf(pod)
		if owner == nil || jobOf(pod) != "" || !serves(pod) || actionFor(pod, f.settings, f.watch.DaemonSetExists) != evict {
			continue
		}
		if here[owner.UID]++; here[owner.UID] == 1 {
			owners, names[owner.UID] = append(owners, owner.UID), fmt.Sprintf("%s %s/%s", owner.Kind, pod.Namespace, owner.Name)
		}
		guarded[owner.UID] = guarded[owner.UID] || slices.ContainsFunc(f.matching(pod), keepsOne)
	}
	for _, uid := range owners {
		if here[uid] < 2 || here[uid] < f.replicas[uid] || guarded[uid] {
			continue
		}
		list = append(list, Objection{Subject: subject(names[uid], node),
			Reason: fmt.Sprintf("all its %d pods are on this node, and no budget keeps one running while they move", here[uid])})
	}
	return list
}

// keepsOne reports whether a budget keeps at least one pod running.
func keepsOne(b pdb) bool { return b.Status.DesiredHealthy > 0 }

const (
	namedSubjects = 100 // of one reason
	namedReasons  = 20  // in one report
)

// Report returns objections to the drains of several nodes, those for the same reason on
// one line.
func Report(objections []Objection) (lines []string) {
	var reasons []string
	subjects := map[string][]string{}
	for _, o := range objections {
		if subjects[o.Reason] == nil {
			reasons = append(reasons, o.Reason)
		}
		subjects[o.Reason] = append(subjects[o.Reason], o.Subject)
	}
	for _, reason := range reasons[:min(len(reasons), namedReasons)] {
		named := subjects[reason]
		line := strings.Join(named[:min(len(named), namedSubjects)], ", ")
		if more := len(named) - namedSubjects; more > 0 {
			line += fmt.Sprintf(" and %d more", more)
		}
		lines = append(lines, line+": "+reason)
	}
	if more := len(reasons) - namedReasons; more > 0 {
		lines = append(lines, fmt.Sprintf("%d more reasons; ebb plan shows them all", more))
	}
	return lines
}
