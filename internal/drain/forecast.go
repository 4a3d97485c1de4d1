package drain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb/internal/capacity"
	"ebb/internal/cluster"
	"ebb/internal/operation"
)

// Forecast is what a drain of a node would do now, and what would block it.
type Forecast struct {
	Node       string                 `json:"node"`
	Moves      int                    `json:"moves"`                // pods that would be evicted, or are terminating already
	Stays      int                    `json:"stays"`                // mirror pods, those of DaemonSets, and those labelled so
	Waits      int                    `json:"waits,omitempty"`      // pods that run to completion and are waited for
	Blocked    []operation.BlockedPod `json:"blocked,omitempty"`    // pods whose eviction would have to wait, or that the settings forbid
	Objections []Objection            `json:"objections,omitempty"` // why not to drain it as things are, though nothing blocks it
	Risks      []string               `json:"risks,omitempty"`      // consequences that may not be wanted
}

// CheckCapacity forecasts whether the pods that drains of these nodes would evict could be
// scheduled on the other nodes.
func CheckCapacity(w *cluster.Watch, nodes []string, s Settings) capacity.Verdict {
	return capacity.Check(w.Nodes(), w.Pods(),
		func(node string) bool { return slices.Contains(nodes, node) },
		func(pod *core.Pod) bool {
			a := actionFor(pod, s, w.DaemonSetExists)
			return a == evict || a == forbid
		})
}

// Forecaster forecasts drains of a cluster as its watch shows it now. It changes nothing.
type Forecaster struct {
	watch    *cluster.Watch
	settings Settings
	budgets  selectors
	replicas map[types.UID]int // pods of each controller on all nodes
	local    map[string][]*core.PersistentVolume
}

// NewForecaster returns a Forecaster for drains with these settings.
func NewForecaster(w *cluster.Watch, s Settings) *Forecaster {
	f := &Forecaster{watch: w, settings: s, budgets: selectors{}, replicas: map[types.UID]int{}, local: nodeLocal(w.Volumes(), w.Nodes())}
	for _, pod := range w.Pods() {
		if owner := meta.GetControllerOf(pod); owner != nil && serves(pod) {
			f.replicas[owner.UID]++
		}
	}
	return f
}

// serves reports whether a pod is there to stay: neither terminating nor finished.
func serves(pod *core.Pod) bool { return pod.DeletionTimestamp == nil && !finished(pod) }

// Node returns what a drain of a node would do.
func (f *Forecaster) Node(node string) Forecast {
	forecast := Forecast{Node: node}
	pods := f.watch.PodsOn(node)
	slices.SortFunc(pods, byName)
	for _, pod := range pods {
		f.add(&forecast, pod)
	}
	forecast.Objections = slices.Concat(forecast.Objections, f.concentrated(node, pods), f.LocalVolumes(node))
	return forecast
}

// add adds what would become of one pod.
func (f *Forecaster) add(forecast *Forecast, pod *core.Pod) {
	switch actionFor(pod, f.settings, f.watch.DaemonSetExists) {
	case ignore:
		forecast.Stays++
		if stays(pod) {
			forecast.Risks = append(forecast.Risks, podName(pod)+" stays on the node (label "+labelDrain+": "+drainSkip+")")
		}
		return
	case await:
		forecast.Waits++
		forecast.Risks = append(forecast.Risks, podName(pod)+": "+awaited(pod, f.settings))
		return
	case forbid:
		forecast.Blocked = append(forecast.Blocked, whyForbidden(pod, f.settings))
	case evict:
		budgets := f.matching(pod)
		if len(budgets) > 1 || len(budgets) == 1 && budgets[0].Status.DisruptionsAllowed < 1 {
			forecast.Blocked = append(forecast.Blocked, blockedBy(pod, budgets, neighboursIn(f.watch, pod.Namespace), time.Now().Add(f.watch.Clock.Ahead())))
		}
		forecast.Risks = append(forecast.Risks, f.risks(pod)...)
		forecast.Objections = append(forecast.Objections, objections(forecast.Node, pod)...)
	}
	forecast.Moves++
}

func (f *Forecaster) matching(pod *core.Pod) []pdb {
	return matching(pod, f.budgets.compile(f.watch.Budgets(pod.Namespace)))
}

// risks returns the consequences of the eviction of a pod, even when nothing blocks it.
func (f *Forecaster) risks(pod *core.Pod) (texts []string) {
	if !serves(pod) {
		return nil
	}
	owner := meta.GetControllerOf(pod)
	switch {
	case owner == nil: // an objection
	case jobOf(pod) != "":
		texts = append(texts, fmt.Sprintf("%s of Job %s is evicted and its work starts over elsewhere (drain.jobs: wait lets it complete)", podName(pod), owner.Name))
	case f.replicas[owner.UID] == 1:
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

func hostPaths(pod *core.Pod) (names []string) {
	for _, v := range pod.Spec.Volumes {
		if v.HostPath != nil {
			names = append(names, cmp.Or(v.HostPath.Path, v.Name))
		}
	}
	return names
}
