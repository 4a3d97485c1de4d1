package activities

import (
	"context"
	"fmt"

	"ebb/internal/clusterstate"
	"ebb/internal/policy"
	"ebb/internal/version"
)

// DiagnoseInput names the cluster to look at.
type DiagnoseInput struct {
	Cluster string `json:"cluster"`
}

// Diagnosis says whether a cluster in Alert may be Running again.
type Diagnosis struct {
	State   clusterstate.State `json:"state"`
	Faults  []string           `json:"faults,omitempty"`  // what keeps it from Running
	Version version.Version    `json:"version,omitempty"` // what every node is at, when that is the target of the upgrade that failed
}

// Diagnose reads a cluster's state and what policy.Unrecovered says of it.
func (a *Activities) Diagnose(ctx context.Context, in DiagnoseInput) (Diagnosis, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return Diagnosis{}, err
	}
	record, err := a.store(c).Get(ctx)
	if err != nil {
		return Diagnosis{}, err
	}
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return Diagnosis{}, err
	}
	return Diagnosis{State: record.State, Faults: policy.Unrecovered(record, nodes), Version: policy.Reached(record, nodes)}, nil
}

// RestInput names the cluster whose reconciler has nothing to do.
type RestInput struct {
	Cluster string `json:"cluster"`
}

// RestResult says whether the reconciler rests now.
type RestResult struct {
	Resting bool `json:"resting"`
}

// Rest pauses the reconciler of a cluster until an operation ends in Alert. It
// looks at the cluster once more after that: one that has gone to Alert meanwhile
// has its reconciler back.
func (a *Activities) Rest(ctx context.Context, in RestInput) (RestResult, error) {
	if err := a.Engine.Reconcile(ctx, in.Cluster, false); err != nil {
		return RestResult{}, fmt.Errorf("pause the reconciler of %s: %w", in.Cluster, err)
	}
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return RestResult{Resting: true}, nil //nolint:nilerr // not configured any more: nothing to reconcile
	}
	record, err := a.store(c).Get(ctx)
	if err == nil && record.State != clusterstate.Alert && record.State != clusterstate.Recovering {
		return RestResult{Resting: true}, nil
	}
	if again := a.Engine.Reconcile(ctx, in.Cluster, true); again != nil {
		return RestResult{}, fmt.Errorf("resume the reconciler of %s: %w", in.Cluster, again)
	}
	return RestResult{}, err
}

// AttendInput names a cluster in Alert whose reconciler does not look at it.
type AttendInput struct {
	Cluster string `json:"cluster"`
}

// AttendResult is empty.
type AttendResult struct{}

// Attend resumes the reconciler of a cluster.
func (a *Activities) Attend(ctx context.Context, in AttendInput) (AttendResult, error) {
	if err := a.Engine.Reconcile(ctx, in.Cluster, true); err != nil {
		return AttendResult{}, fmt.Errorf("resume the reconciler of %s: %w", in.Cluster, err)
	}
	return AttendResult{}, nil
}
