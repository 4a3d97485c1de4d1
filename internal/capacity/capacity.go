// Package capacity forecasts whether the pods of nodes that are removed could be
// scheduled on the nodes that stay.
package capacity

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	core "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/resource"
	scheduling "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// Verdict is the outcome of a check.
type Verdict struct {
	Moving        int                `json:"moving"`             // pods that have to find another node
	Needed        string             `json:"needed,omitempty"`   // what they request together
	Free          string             `json:"free,omitempty"`     // what is free on the nodes that stay
	Unschedulable []UnschedulablePod `json:"homeless,omitempty"` // pods that fit on no node that stays
}

// UnschedulablePod is a pod that fits on no node that stays.
type UnschedulablePod struct {
	Pod    string `json:"pod"` // namespace/name
	Reason string `json:"reason"`
}

// namedPods is the number of unschedulable pods that the sentence of a Verdict names.
const namedPods = 3

// String returns the verdict as a sentence, or "" when every pod fits.
func (v Verdict) String() string {
	if len(v.Unschedulable) == 0 {
		return ""
	}
	var named []string
	for _, h := range v.Unschedulable[:min(namedPods, len(v.Unschedulable))] {
		named = append(named, h.Pod+" ("+h.Reason+")")
	}
	if more := len(v.Unschedulable) - len(named); more > 0 {
		named = append(named, fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf("%d of %d pods would find no room on the nodes that stay: %s; together the pods request %s, free is %s",
		len(v.Unschedulable), v.Moving, strings.Join(named, ", "), v.Needed, v.Free)
}

// Check forecasts where the pods of removed nodes go that a drain evicts: the largest
// first, each to the first remaining node that is Ready and schedulable, admits it
// (node selector, required node affinity, taints) and has room for its requests. It
// does not consider pod affinity, topology spread and volumes. pods are those of the
// whole cluster; removed reports whether a node is removed, evicted whether a drain
// evicts a pod.
func Check(nodes []*core.Node, pods []*core.Pod, removed func(node string) bool, evicted func(*core.Pod) bool) Verdict {
	remaining := nodeInfos(nodes, pods, removed)
	var moving []*core.Pod
	for _, p := range pods {
		if removed(p.Spec.NodeName) && evicted(p) {
			moving = append(moving, p)
		}
	}
	verdict := Verdict{Moving: len(moving), Needed: describe(totalRequests(moving)), Free: describe(totalFree(remaining))}
	for _, p := range byDominantShare(moving, totalFree(remaining)) {
		if reason := schedule(p, remaining); reason != "" {
			verdict.Unschedulable = append(verdict.Unschedulable, UnschedulablePod{Pod: p.Namespace + "/" + p.Name, Reason: reason})
		}
	}
	return verdict
}

// nodeInfo is a node and the part of its allocatable resources that no pod requests.
type nodeInfo struct {
	node *core.Node
	free core.ResourceList
}

// nodeInfos returns the nodes that stay, are Ready and schedulable.
func nodeInfos(nodes []*core.Node, pods []*core.Pod, removed func(string) bool) []*nodeInfo {
	byName := map[string]*nodeInfo{}
	var infos []*nodeInfo
	for _, n := range nodes {
		if removed(n.Name) || n.Spec.Unschedulable || !ready(n) {
			continue
		}
		info := &nodeInfo{node: n, free: n.Status.Allocatable.DeepCopy()}
		byName[n.Name], infos = info, append(infos, info)
	}
	for _, p := range pods {
		if info := byName[p.Spec.NodeName]; info != nil && p.Status.Phase != core.PodSucceeded && p.Status.Phase != core.PodFailed {
			info.reserve(requests(p))
		}
	}
	return infos
}

func ready(n *core.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c core.NodeCondition) bool {
		return c.Type == core.NodeReady && c.Status == core.ConditionTrue
	})
}

// requests returns what a pod requests, one of the node's pods included.
func requests(p *core.Pod) core.ResourceList {
	list := resource.PodRequests(p, resource.PodResourcesOptions{}).DeepCopy()
	if list == nil {
		list = core.ResourceList{}
	}
	list[core.ResourcePods] = *quantity.NewQuantity(1, quantity.DecimalSI)
	return list
}

func (n *nodeInfo) reserve(list core.ResourceList) {
	for name, q := range list {
		left := n.free[name]
		left.Sub(q)
		n.free[name] = left
	}
}

// insufficient returns the names of the resources of which too little is free.
func (n *nodeInfo) insufficient(list core.ResourceList) (names []string) {
	for name, q := range list {
		if left := n.free[name]; !q.IsZero() && left.Cmp(q) < 0 {
			names = append(names, string(name))
		}
	}
	slices.Sort(names)
	return names
}

func (n *nodeInfo) admits(p *core.Pod) bool {
	fits, err := nodeaffinity.GetRequiredNodeAffinity(p).Match(n.node)
	if err != nil || !fits {
		return false
	}
	_, tainted := scheduling.FindMatchingUntoleratedTaint(klog.Background(), n.node.Spec.Taints, p.Spec.Tolerations, func(t *core.Taint) bool {
		return t.Effect == core.TaintEffectNoSchedule || t.Effect == core.TaintEffectNoExecute
	}, true)
	return !tainted
}

// schedule reserves a pod's requests on the first node that it fits on, or returns the
// reason why it fits on none.
func schedule(p *core.Pod, infos []*nodeInfo) (reason string) {
	needed := requests(p)
	admitting, lacking := 0, map[string]int{}
	for _, info := range infos {
		if !info.admits(p) {
			continue
		}
		admitting++
		missing := info.insufficient(needed)
		if len(missing) == 0 {
			info.reserve(needed)
			return ""
		}
		for _, name := range missing {
			lacking[name]++
		}
	}
	if admitting == 0 {
		return "no node that stays satisfies its node selector, affinity and tolerations"
	}
	var short []string
	for name := range lacking {
		q := needed[core.ResourceName(name)]
		short = append(short, fmt.Sprintf("%s %s", name, q.String()))
	}
	slices.Sort(short)
	return fmt.Sprintf("requests %s, more than any of %d nodes has free", strings.Join(short, ", "), admitting)
}

// byDominantShare sorts pods, the largest first, by the largest share of any resource
// of that they request.
func byDominantShare(pods []*core.Pod, of core.ResourceList) []*core.Pod {
	share := func(p *core.Pod) (most float64) {
		for name, q := range requests(p) {
			if all := of[name]; all.Sign() > 0 {
				most = max(most, q.AsApproximateFloat64()/all.AsApproximateFloat64())
			}
		}
		return most
	}
	sorted := slices.Clone(pods)
	slices.SortStableFunc(sorted, func(a, b *core.Pod) int {
		return cmp.Or(cmp.Compare(share(b), share(a)), strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name))
	})
	return sorted
}

func totalRequests(pods []*core.Pod) core.ResourceList {
	sum := core.ResourceList{}
	for _, p := range pods {
		add(sum, requests(p))
	}
	return sum
}

func totalFree(infos []*nodeInfo) core.ResourceList {
	sum := core.ResourceList{}
	for _, info := range infos {
		add(sum, info.free)
	}
	return sum
}

func add(sum, list core.ResourceList) {
	for name, q := range list {
		all := sum[name]
		all.Add(q)
		sum[name] = all
	}
}

// describe returns a list of resources in words.
func describe(list core.ResourceList) string {
	cpu, memory, pods := list[core.ResourceCPU], list[core.ResourceMemory], list[core.ResourcePods]
	return fmt.Sprintf("cpu %s, memory %s, pods %s", cpu.String(), memory.String(), pods.String())
}
