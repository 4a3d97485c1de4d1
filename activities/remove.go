package activities

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb/internal/cluster"
	"ebb/internal/infra"
	"ebb/internal/inspect"
	"ebb/internal/policy"
)

// MachineInput names a node and, through it, its machine.
type MachineInput struct {
	Cluster string      `json:"cluster"`
	Node    policy.Node `json:"node"`
}

// MachineResult is the state of a machine.
type MachineResult struct {
	Down bool `json:"down"` // stopped or gone; false also when the provider cannot tell
}

// Machine asks the infrastructure whether the machine of a node is down.
func (a *Activities) Machine(ctx context.Context, in MachineInput) (MachineResult, error) {
	provider, err := a.provider(ctx, in.Cluster)
	if err != nil {
		return MachineResult{}, err
	}
	state, err := provider.State(ctx, infra.MachineOf(in.Cluster, in.Node))
	if err != nil {
		return MachineResult{}, fmt.Errorf("state of the machine of %s: %w", in.Node.Name, err)
	}
	return MachineResult{Down: state == infra.Stopped || state == infra.Gone}, nil
}

// InfraCalls says how the infrastructure of a cluster is to be called.
type InfraCalls struct {
	Timeout time.Duration `json:"timeout,omitempty"` // of one call
	Lists   bool          `json:"lists,omitempty"`   // one call tells the states of all machines
}

// infraCalls returns how the infrastructure of a cluster is to be called. The error is a
// *cluster.ConfigError.
func infraCalls(c *cluster.Cluster) (InfraCalls, error) {
	settings, err := c.Settings()
	if err != nil {
		return InfraCalls{}, err
	}
	provider, err := c.Infra()
	if err != nil {
		return InfraCalls{}, err
	}
	_, lists := provider.(infra.StateLister)
	return InfraCalls{Timeout: settings.Infrastructure.Timeout.D(), Lists: lists}, nil
}

// MachinesInput names nodes and, through them, their machines: all, where one call tells
// their states, otherwise at most infra.StatesAtOnce, which are asked for at a time.
type MachinesInput struct {
	Cluster string        `json:"cluster"`
	Nodes   []policy.Node `json:"nodes"`
}

// MachinesResult names the nodes whose machine is stopped or gone. One of which the provider
// cannot tell is not among them.
type MachinesResult struct {
	Down []string `json:"down,omitempty"`
}

// Machines asks the infrastructure which machines are down.
func (a *Activities) Machines(ctx context.Context, in MachinesInput) (MachinesResult, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return MachinesResult{}, err
	}
	down, err := inspect.DownMachines(ctx, c, in.Nodes)
	return MachinesResult{Down: down}, err
}

// LookAgainResult says what has become of a node since the operation has chosen it.
type LookAgainResult struct {
	Gone     bool `json:"gone,omitempty"`     // no node has its name
	Replaced bool `json:"replaced,omitempty"` // another one has its name, perhaps on another machine
}

// LookAgain reads whether a node is still the one that the operation has chosen.
func (a *Activities) LookAgain(ctx context.Context, in MachineInput) (LookAgainResult, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return LookAgainResult{}, err
	}
	node, err := c.Client.CoreV1().Nodes().Get(ctx, in.Node.Name, meta.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return LookAgainResult{Gone: true}, nil
	case err != nil:
		return LookAgainResult{}, fmt.Errorf("read node %s: %w", in.Node.Name, err)
	}
	return LookAgainResult{Replaced: string(node.UID) != in.Node.UID}, nil
}

// DeleteNodeResult says whether the node was still the one that was meant.
type DeleteNodeResult struct {
	Replaced bool `json:"replaced,omitempty"` // another node has its name: nothing was deleted
}

// DeleteNode removes a node from its cluster. A node that is gone, or that came
// back as another one under the same name, is done.
func (a *Activities) DeleteNode(ctx context.Context, in MachineInput) (DeleteNodeResult, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return DeleteNodeResult{}, err
	}
	uid := types.UID(in.Node.UID)
	err = c.Client.CoreV1().Nodes().Delete(ctx, in.Node.Name, meta.DeleteOptions{Preconditions: &meta.Preconditions{UID: &uid}})
	switch {
	case apierrors.IsConflict(err):
		return DeleteNodeResult{Replaced: true}, nil
	case err != nil && !apierrors.IsNotFound(err):
		return DeleteNodeResult{}, fmt.Errorf("delete node %s: %w", in.Node.Name, err)
	}
	return DeleteNodeResult{}, nil
}

// DestroyMachineResult is empty.
type DestroyMachineResult struct{}

// DestroyMachine has the infrastructure destroy the machine of a node that has
// left its cluster. A machine that is gone is done.
func (a *Activities) DestroyMachine(ctx context.Context, in MachineInput) (DestroyMachineResult, error) {
	provider, err := a.provider(ctx, in.Cluster)
	if err != nil {
		return DestroyMachineResult{}, err
	}
	if err := provider.Destroy(ctx, infra.MachineOf(in.Cluster, in.Node)); err != nil {
		return DestroyMachineResult{}, fmt.Errorf("destroy the machine of %s: %w", in.Node.Name, err)
	}
	return DestroyMachineResult{}, nil
}

func (a *Activities) provider(ctx context.Context, name string) (infra.Provider, error) {
	c, err := a.Clusters.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	provider, err := c.Infra()
	if err != nil {
		return nil, err
	}
	return provider, nil
}
