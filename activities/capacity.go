package activities

import (
	"context"
	"fmt"

	"ebb/internal/drain"
)

// CapacityInput names the nodes that are to leave.
type CapacityInput struct {
	Cluster string   `json:"cluster"`
	Nodes   []string `json:"nodes"`
}

// CapacityResult says what would find no room; empty = every pod fits.
type CapacityResult struct {
	Warning string `json:"warning,omitempty"`
}

// Capacity forecasts whether the pods of nodes that leave find room on those that
// stay. It goes by requests, node selectors, required affinity and taints.
func (a *Activities) Capacity(ctx context.Context, in CapacityInput) (CapacityResult, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return CapacityResult{}, err
	}
	settings, err := c.Settings()
	if err != nil {
		return CapacityResult{}, err
	}
	w, err := c.Watch(ctx)
	if err != nil {
		return CapacityResult{}, fmt.Errorf("watch cluster %s: %w", in.Cluster, err)
	}
	verdict := drain.CheckCapacity(w, in.Nodes, drain.NewSettings(settings.Drain))
	return CapacityResult{Warning: verdict.String()}, nil
}
