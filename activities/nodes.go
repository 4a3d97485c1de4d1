package activities

import (
	"context"
	"fmt"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/cluster"
	"ebb/internal/clusterstate"
	"ebb/internal/config"
	"ebb/internal/infra"
	"ebb/internal/plan"
)

// SurveyInput names the cluster to look at.
type SurveyInput struct {
	Cluster string `json:"cluster"`
}

// Survey is a cluster as an operation finds it, with the settings that hold for
// the whole operation. (Those of a drain are read again for each attempt.)
type Survey struct {
	Nodes   []plan.Node     `json:"nodes"` // sorted by plan.Sort
	Scale   ScaleSettings   `json:"scale"`
	Upgrade UpgradeSettings `json:"upgrade"`
}

// ScaleSettings are config.Scale as a workflow carries them.
type ScaleSettings struct {
	Timeout     time.Duration `json:"timeout"`
	Attempts    int           `json:"attempts"`
	MaxParallel int           `json:"maxParallel"`
	MinWorkers  int           `json:"minWorkers"`
}

// UpgradeSettings are config.Upgrade as a workflow carries them.
type UpgradeSettings struct {
	Retries        int           `json:"retries"`
	NodeTimeout    time.Duration `json:"nodeTimeout"`
	Timeout        time.Duration `json:"timeout"` // 0 = the sum of the nodes' timeouts
	ReadyTimeout   time.Duration `json:"readyTimeout"`
	SteadyInterval time.Duration `json:"steadyInterval"`
	MaxUnavailable int           `json:"maxUnavailable"` // workers at once, resolved against the cluster's workers
}

// Survey reads the nodes of a cluster and its settings.
func (a *Activities) Survey(ctx context.Context, in SurveyInput) (Survey, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return Survey{}, permanent(TypeConfig, err)
	}
	settings, err := c.Settings()
	if err != nil {
		return Survey{}, permanent(TypeConfig, err)
	}
	nodes, err := listNodes(ctx, c)
	if err != nil {
		return Survey{}, err
	}
	_, workers := plan.UpgradeOrder(nodes)
	return Survey{
		Nodes: nodes,
		Scale: ScaleSettings{
			Timeout: settings.Scale.Timeout.D(), Attempts: settings.Scale.Attempts,
			MaxParallel: settings.Scale.MaxParallel, MinWorkers: settings.Scale.MinWorkers,
		},
		Upgrade: upgradeSettings(settings.Upgrade, len(workers)),
	}, nil
}

func upgradeSettings(u config.Upgrade, workers int) UpgradeSettings {
	return UpgradeSettings{
		Retries: *u.Retries, NodeTimeout: u.NodeTimeout.D(), Timeout: u.Timeout.D(),
		ReadyTimeout: u.ReadyTimeout.D(), SteadyInterval: u.SteadyInterval.D(), MaxUnavailable: u.Unavailable(workers),
	}
}

func listNodes(ctx context.Context, c *cluster.Cluster) ([]plan.Node, error) {
	list, err := c.Client.CoreV1().Nodes().List(ctx, meta.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the nodes of %s: %w", c.Name, err)
	}
	return PlanNodes(list.Items), nil
}

// PlanNodes is the nodes of a cluster as plans see them, sorted.
func PlanNodes(list []core.Node) []plan.Node {
	nodes := make([]plan.Node, len(list))
	for i := range list {
		nodes[i] = planNode(&list[i])
	}
	return plan.Sort(nodes)
}

// NodeResult is a node as it is now.
type NodeResult struct {
	Node plan.Node `json:"node"`
}

// Node reads one node anew.
func (a *Activities) Node(ctx context.Context, in NodeInput) (NodeResult, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return NodeResult{}, permanent(TypeConfig, err)
	}
	node, err := c.Client.CoreV1().Nodes().Get(ctx, in.Node, meta.GetOptions{})
	if apierrors.IsNotFound(err) {
		return NodeResult{}, permanentf(TypeConfig, "node %s is not in cluster %s any more", in.Node, in.Cluster)
	}
	if err != nil {
		return NodeResult{}, fmt.Errorf("read node %s: %w", in.Node, err)
	}
	return NodeResult{Node: planNode(node)}, nil
}

func planNode(n *core.Node) plan.Node {
	node := plan.Node{
		Name: n.Name, UID: string(n.UID), Role: plan.Worker,
		Version: n.Status.NodeInfo.KubeletVersion, Recorded: n.Annotations[annotationNodeVersion],
		Ready: nodeReady(n), Unschedulable: n.Spec.Unschedulable, CordonedBy: n.Annotations[clusterstate.CordonedBy],
		Manual:    n.Labels[labelManualUpgrade] == "true",
		MachineID: n.Status.NodeInfo.MachineID, ProviderID: n.Spec.ProviderID, Created: n.CreationTimestamp.Time,
	}
	if _, ok := n.Labels[labelControlPlane]; ok {
		node.Role = plan.ControlPlane
	}
	for _, address := range n.Status.Addresses {
		if address.Type == core.NodeInternalIP {
			node.Addresses = append(node.Addresses, address.Address)
		}
	}
	return node
}

func nodeReady(n *core.Node) bool {
	for _, condition := range n.Status.Conditions {
		if condition.Type == core.NodeReady {
			return condition.Status == core.ConditionTrue
		}
	}
	return false
}

func machineOf(clusterName string, n plan.Node) infra.Machine {
	return infra.Machine{
		Cluster: clusterName, Node: n.Name, UID: n.UID, ProviderID: n.ProviderID,
		MachineID: n.MachineID, Addresses: n.Addresses,
	}
}
