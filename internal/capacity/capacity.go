// Package capacity tells whether the pods of nodes that leave find room on the
// nodes that stay.
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
	Moving   int        `json:"moving"`             // pods that have to find another node
	Needed   string     `json:"needed,omitempty"`   // what they request together
	Free     string     `json:"free,omitempty"`     // what is free on the nodes that stay
	Homeless []Homeless `json:"homeless,omitempty"` // those that fit nowhere
}

// Homeless is a pod that no remaining node has a place for.
type Homeless struct {
	Pod    string `json:"pod"` // namespace/name
	Reason string `json:"reason"`
}

// namedPods is how many homeless pods a sentence names.
const namedPods = 3

// String is the verdict in a sentence, or "" when every pod finds room.
func (v Verdict) String() string {
	if len(v.Homeless) == 0 {
		return ""
	}
	var named []string
	for _, h := range v.Homeless[:min(namedPods, len(v.Homeless))] {
		named = append(named, h.Pod+" ("+h.Reason+")")
	}
	if more := len(v.Homeless) - len(named); more > 0 {
		named = append(named, fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf("%d of %d pods would find no room on the nodes that stay: %s; together the pods request %s, free is %s",
		len(v.Homeless), v.Moving, strings.Join(named, ", "), v.Needed, v.Free)
}

// Check places the pods that move, the largest first, each on the first node
// that stays, is Ready and schedulable, allows it (node selector, required node
// affinity, taints) and has room for its requests. It knows nothing of pod
// affinity, topology spread and volumes: what it finds is a forecast.
func Check(nodes []*core.Node, pods []*core.Pod, leaves func(node string) bool, moves func(*core.Pod) bool) Verdict {
	staying := roomOn(nodes, pods, leaves)
	var moving []*core.Pod
	for _, p := range pods {
		if leaves(p.Spec.NodeName) && moves(p) {
			moving = append(moving, p)
		}
	}
	verdict := Verdict{Moving: len(moving), Needed: total(requestsOf(moving)), Free: total(freeOf(staying))}
	for _, p := range largestFirst(moving, freeOf(staying)) {
		if reason := place(p, staying); reason != "" {
			verdict.Homeless = append(verdict.Homeless, Homeless{Pod: p.Namespace + "/" + p.Name, Reason: reason})
		}
	}
	return verdict
}

// room is a node and what is not requested on it yet.
type room struct {
	node *core.Node
	free core.ResourceList
}

func roomOn(nodes []*core.Node, pods []*core.Pod, leaves func(string) bool) []*room {
	byName := map[string]*room{}
	var rooms []*room
	for _, n := range nodes {
		if leaves(n.Name) || n.Spec.Unschedulable || !ready(n) {
			continue
		}
		r := &room{node: n, free: n.Status.Allocatable.DeepCopy()}
		byName[n.Name], rooms = r, append(rooms, r)
	}
	for _, p := range pods {
		if r := byName[p.Spec.NodeName]; r != nil && p.Status.Phase != core.PodSucceeded && p.Status.Phase != core.PodFailed {
			r.take(requests(p))
		}
	}
	return rooms
}

func ready(n *core.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c core.NodeCondition) bool {
		return c.Type == core.NodeReady && c.Status == core.ConditionTrue
	})
}

// requests is what a pod requests, its own place among a node's pods included.
func requests(p *core.Pod) core.ResourceList {
	list := resource.PodRequests(p, resource.PodResourcesOptions{}).DeepCopy()
	if list == nil {
		list = core.ResourceList{}
	}
	list[core.ResourcePods] = *quantity.NewQuantity(1, quantity.DecimalSI)
	return list
}

func (r *room) take(list core.ResourceList) {
	for name, q := range list {
		left := r.free[name]
		left.Sub(q)
		r.free[name] = left
	}
}

// lacks names the resources of which there is too little.
func (r *room) lacks(list core.ResourceList) (names []string) {
	for name, q := range list {
		if left := r.free[name]; !q.IsZero() && left.Cmp(q) < 0 {
			names = append(names, string(name))
		}
	}
	slices.Sort(names)
	return names
}

func (r *room) allows(p *core.Pod) bool {
	fits, err := nodeaffinity.GetRequiredNodeAffinity(p).Match(r.node)
	if err != nil || !fits {
		return false
	}
	_, tainted := scheduling.FindMatchingUntoleratedTaint(klog.Background(), r.node.Spec.Taints, p.Spec.Tolerations, func(t *core.Taint) bool {
		return t.Effect == core.TaintEffectNoSchedule || t.Effect == core.TaintEffectNoExecute
	}, true)
	return !tainted
}

// place puts a pod on the first node that takes it, or says why none does.
func place(p *core.Pod, rooms []*room) (reason string) {
	needed := requests(p)
	allowed, lacking := 0, map[string]int{}
	for _, r := range rooms {
		if !r.allows(p) {
			continue
		}
		allowed++
		lacks := r.lacks(needed)
		if len(lacks) == 0 {
			r.take(needed)
			return ""
		}
		for _, name := range lacks {
			lacking[name]++
		}
	}
	if allowed == 0 {
		return "no node that stays satisfies its node selector, affinity and tolerations"
	}
	var short []string
	for name := range lacking {
		q := needed[core.ResourceName(name)]
		short = append(short, fmt.Sprintf("%s %s", name, q.String()))
	}
	slices.Sort(short)
	return fmt.Sprintf("requests %s, more than any of %d nodes has free", strings.Join(short, ", "), allowed)
}

// largestFirst sorts pods by the largest part that they take of any resource.
func largestFirst(pods []*core.Pod, of core.ResourceList) []*core.Pod {
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

func requestsOf(pods []*core.Pod) core.ResourceList {
	sum := core.ResourceList{}
	for _, p := range pods {
		add(sum, requests(p))
	}
	return sum
}

func freeOf(rooms []*room) core.ResourceList {
	sum := core.ResourceList{}
	for _, r := range rooms {
		add(sum, r.free)
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

// total is a list of resources as a person reads it.
func total(list core.ResourceList) string {
	cpu, memory, pods := list[core.ResourceCPU], list[core.ResourceMemory], list[core.ResourcePods]
	return fmt.Sprintf("cpu %s, memory %s, pods %s", cpu.String(), memory.String(), pods.String())
}
