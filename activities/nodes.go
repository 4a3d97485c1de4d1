package activities

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/cluster"
	"ebb/internal/config"
	"ebb/internal/operation"
	"ebb/internal/policy"
)

// SurveyInput names the cluster to look at.
type SurveyInput struct {
	Cluster string `json:"cluster"`
}

// Survey is a cluster as an operation finds it, with the settings that hold for
// the whole operation. (Those of a drain are read again for each attempt.)
type Survey struct {
	Nodes   []policy.Node   `json:"nodes"` // sorted by policy.Sort
	Scale   ScaleSettings   `json:"scale"`
	Upgrade UpgradeSettings `json:"upgrade"`
	Infra   InfraCalls      `json:"infra,omitzero"`
}

// ScaleSettings are config.Scale as a workflow carries them.
type ScaleSettings struct {
	Timeout     time.Duration `json:"timeout"`
	Attempts    int           `json:"attempts"`
	MaxParallel int           `json:"maxParallel"`
	MinWorkers  int           `json:"minWorkers"`

	VolumeDetachTimeout time.Duration `json:"volumeDetachTimeout,omitempty"`
}

// UpgradeSettings are config.Upgrade as a workflow carries them.
type UpgradeSettings struct {
	Retries        int           `json:"retries"`
	NodeTimeout    time.Duration `json:"nodeTimeout"`
	Timeout        time.Duration `json:"timeout"` // 0 = the sum of the nodes' timeouts
	ReadyTimeout   time.Duration `json:"readyTimeout"`
	SteadyInterval time.Duration `json:"steadyInterval"`
	MaxUnavailable int           `json:"maxUnavailable"` // workers at once, resolved against the cluster's workers
	ISO            bool          `json:"iso,omitempty"`  // the script needs an ISO, which the infrastructure attaches
}

// Survey reads the nodes of a cluster and its settings.
func (a *Activities) Survey(ctx context.Context, in SurveyInput) (Survey, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return Survey{}, err
	}
	settings, err := c.Settings()
	if err != nil {
		return Survey{}, err
	}
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return Survey{}, err
	}
	calls, err := infraCalls(c)
	if err != nil {
		return Survey{}, err
	}
	_, workers := policy.UpgradeOrder(nodes)
	return Survey{
		Nodes: nodes, Infra: calls,
		Scale: ScaleSettings{
			Timeout: settings.Scale.Timeout.D(), Attempts: settings.Scale.Attempts,
			MaxParallel: settings.Scale.MaxParallel, MinWorkers: settings.Scale.MinWorkers,
			VolumeDetachTimeout: settings.Scale.VolumeDetachTimeout.D(),
		},
		Upgrade: upgradeSettings(settings, len(workers)),
	}, nil
}

func upgradeSettings(c config.Cluster, workers int) UpgradeSettings {
	u := c.Upgrade
	return UpgradeSettings{
		Retries: *u.Retries, NodeTimeout: u.NodeTimeout.D(), Timeout: u.Timeout.D(),
		ReadyTimeout: u.ReadyTimeout.D(), SteadyInterval: u.SteadyInterval.D(), MaxUnavailable: u.MaxUnavailableWorkers(workers),
		ISO: c.AttachesISO(),
	}
}

// NodeResult is a node as it is now.
type NodeResult struct {
	Node policy.Node `json:"node"`
}

// Node reads one node anew.
func (a *Activities) Node(ctx context.Context, in NodeInput) (NodeResult, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return NodeResult{}, err
	}
	node, err := c.Client.CoreV1().Nodes().Get(ctx, in.Node, meta.GetOptions{})
	if apierrors.IsNotFound(err) {
		return NodeResult{}, permanentf(operation.TypeConfig, "node %s is not in cluster %s any more", in.Node, in.Cluster)
	}
	if err != nil {
		return NodeResult{}, fmt.Errorf("read node %s: %w", in.Node, err)
	}
	return NodeResult{Node: cluster.PolicyNode(node)}, nil
}
