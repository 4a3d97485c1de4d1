package capacity

import (
	"testing"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func resources(cpu, memory string) core.ResourceList {
	return core.ResourceList{core.ResourceCPU: quantity.MustParse(cpu), core.ResourceMemory: quantity.MustParse(memory)}
}

func node(name string, change ...func(*core.Node)) *core.Node {
	n := &core.Node{ObjectMeta: meta.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}}
	n.Status.Allocatable = resources("2", "4Gi")
	n.Status.Allocatable[core.ResourcePods] = quantity.MustParse("10")
	n.Status.Conditions = []core.NodeCondition{{Type: core.NodeReady, Status: core.ConditionTrue}}
	for _, c := range change {
		c(n)
	}
	return n
}

func pod(name, on, cpu string, change ...func(*core.Pod)) *core.Pod {
	p := &core.Pod{ObjectMeta: meta.ObjectMeta{Namespace: "shop", Name: name}}
	p.Spec.NodeName = on
	p.Spec.Containers = []core.Container{{Resources: core.ResourceRequirements{Requests: resources(cpu, "64Mi")}}}
	for _, c := range change {
		c(p)
	}
	return p
}

func onlyOn(name string) func(*core.Pod) {
	return func(p *core.Pod) { p.Spec.NodeSelector = map[string]string{"name": name} }
}

func TestCheck(t *testing.T) {
	tainted := func(n *core.Node) {
		n.Spec.Taints = []core.Taint{{Key: "gpu", Effect: core.TaintEffectNoSchedule}}
	}
	tolerant := func(p *core.Pod) {
		p.Spec.Tolerations = []core.Toleration{{Key: "gpu", Operator: core.TolerationOpExists}}
	}
	over := func(p *core.Pod) { p.Status.Phase = core.PodSucceeded }
	for _, c := range []struct {
		name  string
		nodes []*core.Node
		pods  []*core.Pod
		want  []UnschedulablePod
	}{
		{"room on what stays", []*core.Node{node("w1"), node("w2")}, []*core.Pod{pod("a", "w1", "1"), pod("b", "w2", "1")}, nil},
		{
			"too little cpu", []*core.Node{node("w1"), node("w2")}, []*core.Pod{pod("a", "w1", "1500m"), pod("b", "w2", "1")},
			[]UnschedulablePod{{"shop/a", "requests cpu 1500m, more than any of 1 nodes has free"}},
		},
		{
			"the large one first, so that all fit", []*core.Node{node("w1"), node("w2"), node("w3")},
			[]*core.Pod{pod("a", "w1", "500m"), pod("b", "w1", "500m"), pod("c", "w1", "1500m"), pod("d", "w2", "500m"), pod("e", "w3", "1")}, nil,
		},
		{"what is over takes no room", []*core.Node{node("w1"), node("w2")}, []*core.Pod{pod("a", "w1", "2"), pod("b", "w2", "2", over)}, nil},
		{
			"selected away", []*core.Node{node("w1"), node("w2")}, []*core.Pod{pod("a", "w1", "1", onlyOn("w1"))},
			[]UnschedulablePod{{"shop/a", "no node that stays satisfies its node selector, affinity and tolerations"}},
		},
		{
			"tainted", []*core.Node{node("w1"), node("w2", tainted)}, []*core.Pod{pod("a", "w1", "1"), pod("b", "w1", "1", tolerant)},
			[]UnschedulablePod{{"shop/a", "no node that stays satisfies its node selector, affinity and tolerations"}},
		},
		{
			"cordoned and NotReady nodes take nothing", []*core.Node{
				node("w1"), node("w2", func(n *core.Node) { n.Spec.Unschedulable = true }),
				node("w3", func(n *core.Node) { n.Status.Conditions[0].Status = core.ConditionUnknown }),
			},
			[]*core.Pod{pod("a", "w1", "1")}, []UnschedulablePod{{"shop/a", "no node that stays satisfies its node selector, affinity and tolerations"}},
		},
		{
			"a node takes so many pods", []*core.Node{node("w1"), node("w2", func(n *core.Node) { n.Status.Allocatable[core.ResourcePods] = quantity.MustParse("1") })},
			[]*core.Pod{pod("a", "w1", "100m"), pod("b", "w2", "100m")}, []UnschedulablePod{{"shop/a", "requests pods 1, more than any of 1 nodes has free"}},
		},
		{"what stays on the node is not asked for", []*core.Node{node("w1"), node("w2")}, []*core.Pod{pod("ds", "w1", "2"), pod("b", "w2", "1")}, nil},
	} {
		got := Check(c.nodes, c.pods, func(node string) bool { return node == "w1" }, func(p *core.Pod) bool { return p.Name != "ds" })
		require.Equal(t, c.want, got.Unschedulable, c.name)
	}
}

func TestVerdictInWords(t *testing.T) {
	require.Empty(t, Verdict{Moving: 3}.String())
	nodes := []*core.Node{node("w1"), node("w2")}
	var pods []*core.Pod
	for _, name := range []string{"a", "b", "c", "d"} {
		pods = append(pods, pod(name, "w1", "3"))
	}
	got := Check(nodes, pods, func(node string) bool { return node == "w1" }, func(*core.Pod) bool { return true })
	require.Equal(t, "4 of 4 pods would find no room on the nodes that stay: shop/a (requests cpu 3, more than any of 1 nodes has free), "+
		"shop/b (requests cpu 3, more than any of 1 nodes has free), shop/c (requests cpu 3, more than any of 1 nodes has free), 1 more; "+
		"together the pods request cpu 12, memory 256Mi, pods 4, free is cpu 2, memory 4Gi, pods 10", got.String())
}
