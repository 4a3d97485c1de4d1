package cluster

import (
	"context"
	"fmt"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/clusterstate"
	"ebb/internal/policy"
	"ebb/internal/version"
)

// labelControlPlane is on the control planes of a kubeadm cluster.
const labelControlPlane = "node-role.kubernetes.io/control-plane"

// Nodes reads the nodes of the cluster and returns them as policy.Sort orders them.
func (c *Cluster) Nodes(ctx context.Context) ([]policy.Node, error) {
	list, err := c.Client.CoreV1().Nodes().List(ctx, meta.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the nodes of %s: %w", c.Name, err)
	}
	nodes := make([]policy.Node, len(list.Items))
	for i := range list.Items {
		nodes[i] = PolicyNode(&list.Items[i])
	}
	return policy.Sort(nodes), nil
}

// PolicyNode returns what policy needs to know of a node. Its Role does not tell the
// first control plane from the others, and its Index is 0: only Nodes can.
func PolicyNode(n *core.Node) policy.Node {
	node := policy.Node{
		Name: n.Name, UID: string(n.UID), Role: policy.Worker,
		Version: version.Of(n.Status.NodeInfo.KubeletVersion), Recorded: version.Of(n.Annotations[clusterstate.AnnotationNodeVersion]),
		Ready: NodeReady(n), Unschedulable: n.Spec.Unschedulable, CordonedBy: CordonedBy(n),
		Unfinished: n.Annotations[clusterstate.AnnotationUnfinished] != "",
		Manual:     n.Labels[clusterstate.LabelManualUpgrade] == "true",
		MachineID:  n.Status.NodeInfo.MachineID, ProviderID: n.Spec.ProviderID, Created: n.CreationTimestamp.Time,
	}
	if _, ok := n.Labels[labelControlPlane]; ok {
		node.Role = policy.ControlPlane
	}
	for _, address := range n.Status.Addresses {
		if address.Type == core.NodeInternalIP {
			node.Addresses = append(node.Addresses, address.Address)
		}
	}
	return node
}

// NodeReady reports whether a node's Ready condition is True. A node that has none
// has not reported yet and is not Ready.
func NodeReady(n *core.Node) bool {
	for _, condition := range n.Status.Conditions {
		if condition.Type == core.NodeReady {
			return condition.Status == core.ConditionTrue
		}
	}
	return false
}
