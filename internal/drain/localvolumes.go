package drain

import (
	"fmt"
	"slices"
	"strings"

	core "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

const reasonLocal = "it can be used on this node only: pods that use it run nowhere else, and its data is lost when the machine goes"

// LocalVolumes returns the claimed PersistentVolumes that can be used on the node and on no
// other one, as objections.
func (f *Forecaster) LocalVolumes(node string) (list []Objection) {
	for _, v := range f.local[node] {
		what := fmt.Sprintf("PersistentVolume %s (claim %s/%s)", v.Name, v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name)
		list = append(list, Objection{Subject: subject(what, node), Reason: reasonLocal})
	}
	return list
}

// nodeLocal returns the claimed volumes that can be used on a single node, by node and name.
func nodeLocal(volumes []*core.PersistentVolume, nodes []*core.Node) map[string][]*core.PersistentVolume {
	local := map[string][]*core.PersistentVolume{}
	where := map[string]string{} // by selector: most clusters have one for each node or zone
	for _, v := range volumes {
		if v.Spec.ClaimRef == nil || v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
			continue
		}
		key := v.Spec.NodeAffinity.Required.String()
		if _, known := where[key]; !known {
			where[key] = onlyNode(v.Spec.NodeAffinity.Required, nodes)
		}
		if node := where[key]; node != "" {
			local[node] = append(local[node], v)
		}
	}
	for _, list := range local {
		slices.SortFunc(list, func(a, b *core.PersistentVolume) int { return strings.Compare(a.Name, b.Name) })
	}
	return local
}

// onlyNode returns the name of the node that a selector matches; "" when that is none, or
// more than one.
func onlyNode(selector *core.NodeSelector, nodes []*core.Node) (name string) {
	parsed, err := nodeaffinity.NewNodeSelector(selector)
	if err != nil { // the volume can be used nowhere
		return ""
	}
	for _, n := range nodes {
		switch {
		case !parsed.Match(n):
		case name != "":
			return ""
		default:
			name = n.Name
		}
	}
	return name
}
