package activities

import (
	"context"

	"ebb/internal/inspect"
	"ebb/internal/policy"
)

// PreflightInput names the node to look at.
type PreflightInput struct {
	Cluster string      `json:"cluster"`
	Node    policy.Node `json:"node"`
}

// PreflightResult lists what is wrong with a node; nothing = fit.
type PreflightResult struct {
	Faults []string `json:"faults,omitempty"`
}

// Preflight checks over SSH that a node can be upgraded. What is wrong is a result,
// not an error, so that the faults of all nodes come in one report.
func (a *Activities) Preflight(ctx context.Context, in PreflightInput) (PreflightResult, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return PreflightResult{}, err
	}
	faults, err := inspect.Preflight(ctx, c, in.Node, a.Log)
	return PreflightResult{Faults: faults}, err
}

// HealthInput names the cluster, the control plane that is about to be taken out of
// service (empty = none yet), and the operation that does it.
type HealthInput struct {
	Cluster   string `json:"cluster"`
	Except    string `json:"except,omitempty"`
	Operation string `json:"operation,omitempty"`
}

// HealthResult lists what is wrong with the control plane; nothing = healthy.
type HealthResult struct {
	Faults []string `json:"faults,omitempty"`
}

// Health checks that the control plane can do without one of its nodes.
func (a *Activities) Health(ctx context.Context, in HealthInput) (HealthResult, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return HealthResult{}, err
	}
	faults, err := inspect.ControlPlane(ctx, c, in.Except, in.Operation)
	return HealthResult{Faults: faults}, err
}

// EtcdInput names the cluster, and the control plane that is about to be taken
// out of service (empty = none yet).
type EtcdInput struct {
	Cluster string `json:"cluster"`
	Except  string `json:"except,omitempty"`
}

// EtcdResult lists what is wrong with etcd; nothing = healthy, or not on the
// control planes.
type EtcdResult struct {
	Faults []string `json:"faults,omitempty"`
}

// Etcd checks that the members of a stacked etcd are the control planes, and that
// each but one is healthy.
func (a *Activities) Etcd(ctx context.Context, in EtcdInput) (EtcdResult, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return EtcdResult{}, err
	}
	faults, err := inspect.Etcd(ctx, c, in.Except, a.Log)
	return EtcdResult{Faults: faults}, err
}
