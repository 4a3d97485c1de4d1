package activities

import (
	"context"

	"ebb/internal/drain"
	"ebb/internal/natural"
)

// CheckDrainsInput names the nodes that are to be drained.
type CheckDrainsInput struct {
	Cluster string   `json:"cluster"`
	Nodes   []string `json:"nodes"`
	Down    []string `json:"down,omitempty"` // nodes that go without a drain, because their machine is down
}

// CheckDrainsResult lists what speaks against draining the nodes as things are; nothing =
// no pod would be lost, and no service be down.
type CheckDrainsResult struct {
	Objections []string `json:"objections,omitempty"`
}

// CheckDrains forecasts the drains of all nodes before the first of them is touched, and
// changes nothing. It finds pods that their budgets or the settings keep where they are,
// pods that nothing creates again, pods whose owner asks to leave them alone, workloads all
// of whose pods are on one node, and volumes that can be used on one node only.
func (a *Activities) CheckDrains(ctx context.Context, in CheckDrainsInput) (CheckDrainsResult, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return CheckDrainsResult{}, err
	}
	settings, err := c.Settings()
	if err != nil {
		return CheckDrainsResult{}, err
	}
	w, err := c.Watch(ctx)
	if err != nil {
		return CheckDrainsResult{}, err
	}
	forecaster := drain.NewForecaster(w, drain.NewSettings(settings.Drain))
	var found []drain.Objection
	for _, node := range natural.Sorted(in.Nodes) {
		found = append(found, forecaster.Node(node).AllObjections()...)
	}
	for _, node := range in.Down {
		found = append(found, forecaster.LocalVolumes(node)...)
	}
	return CheckDrainsResult{Objections: drain.Report(found)}, nil
}
