// Package forecast tells what an operation would do to a cluster as it is now:
// which nodes in which order, what would move, what would be in the way, and why
// it would be refused. It changes nothing.
package forecast

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"ebb/internal/capacity"
	"ebb/internal/cluster"
	"ebb/internal/clusterstate"
	"ebb/internal/config"
	"ebb/internal/drain"
	"ebb/internal/lease"
	"ebb/internal/policy"
	"ebb/internal/version"
)

// Forecast is what an operation would do.
type Forecast struct {
	Cluster string             `json:"cluster"`
	State   clusterstate.State `json:"state"`
	Holder  string             `json:"holder,omitempty"` // the operation that has the cluster
	Version version.Version    `json:"version"`          // of the cluster as a whole
	Refusal string             `json:"refusal,omitempty"`
	Retry   bool               `json:"retry,omitempty"`  // it would go on where a failed upgrade stopped
	Target  version.Version    `json:"target,omitempty"` // the version that comes next
	Hops    []version.Version  `json:"hops,omitempty"`   // the versions after that
	Steps   []Step             `json:"steps,omitempty"`  // in order
	Unfit   []string           `json:"unfit,omitempty"`  // what is wrong with control planes, so that an upgrade would not start
	Room    capacity.Verdict   `json:"room,omitzero"`    // of a scale-down

	Parallel int `json:"parallel"` // nodes at once, control planes apart
}

// What is done with a node.
const (
	Apply   = "kubeadm upgrade apply"
	Upgrade = "kubeadm upgrade node"
	Skip    = "skipped: it is done"
	ByHand  = "left out: upgraded by hand"
	Remove  = "removed"
)

// Step is one node's part.
type Step struct {
	Node    string          `json:"node"`
	Role    policy.Role     `json:"role"`
	Version version.Version `json:"version"`
	Action  string          `json:"action"`
	Drain   drain.Forecast  `json:"drain,omitzero"`
}

// view is a cluster as it is now.
type view struct {
	settings config.Cluster
	record   clusterstate.Record
	nodes    []policy.Node
	watch    *cluster.Watch
	drains   *drain.Forecaster
}

func look(ctx context.Context, c *cluster.Cluster) (view, error) {
	settings, err := c.Settings()
	if err != nil {
		return view{}, err
	}
	v := view{settings: settings}
	if v.record, err = lease.NewStore(c.Client, time.Now).Get(ctx); err != nil {
		return view{}, err
	}
	if v.watch, err = c.Watch(ctx); err != nil {
		return view{}, fmt.Errorf("watch cluster %s: %w", c.Name, err)
	}
	v.drains = drain.NewForecaster(v.watch, drain.NewSettings(settings.Drain))
	v.nodes, err = c.Nodes(ctx)
	return v, err
}

func (v view) forecast(name string) Forecast {
	return Forecast{
		Cluster: name, State: v.record.State, Holder: v.record.Holder,
		Version: policy.ClusterVersion(v.record, v.nodes),
	}
}

// ofUpgrade is what an upgrade would do.
func ofUpgrade(ctx context.Context, c *cluster.Cluster, route version.Route) (Forecast, error) {
	v, err := look(ctx, c)
	if err != nil {
		return Forecast{}, err
	}
	f := v.forecast(c.Name)
	accepted, err := policy.AcceptUpgrade(policy.UpgradeFacts{Record: v.record, Nodes: v.nodes, Route: route})
	if err := f.refused(err); err != nil {
		return Forecast{}, err
	}
	stops := route.From(accepted.Next).Stops()
	f.Retry, f.Target, f.Hops = accepted.Retry, stops[0], stops[1:]
	controlPlanes, workers := policy.UpgradeOrder(v.nodes)
	f.Parallel = v.settings.Upgrade.MaxUnavailableWorkers(len(workers))
	for _, n := range slices.Concat(controlPlanes, workers) {
		f.Steps = append(f.Steps, v.upgrade(n, f.Target))
	}
	for _, n := range v.nodes {
		if n.Manual {
			f.Steps = append(f.Steps, v.step(n, ByHand))
		}
	}
	unfinished := slices.DeleteFunc(slices.Clone(controlPlanes), func(n policy.Node) bool { return policy.Finished(n, f.Target) })
	f.Unfit = policy.UnfitControlPlanes(v.nodes, policy.NextControlPlane(unfinished), "")
	return f, nil
}

func (v view) upgrade(n policy.Node, target version.Version) Step {
	switch {
	case policy.Finished(n, target):
		return v.step(n, Skip)
	case n.Role == policy.FirstControlPlane:
		return v.drained(n, Apply)
	default:
		return v.drained(n, Upgrade)
	}
}

// ofScaleDown is what a scale-down would do.
func ofScaleDown(ctx context.Context, c *cluster.Cluster, names []string, count int) (Forecast, error) {
	v, err := look(ctx, c)
	if err != nil {
		return Forecast{}, err
	}
	f := v.forecast(c.Name)
	f.Parallel = max(v.settings.Scale.MaxParallel, 1)
	chosen, err := policy.SelectScaleDown(v.nodes, policy.ScaleDownRequest{Names: names, Count: count, MinWorkers: v.settings.Scale.MinWorkers})
	if err := f.refused(err); err != nil {
		return Forecast{}, err
	}
	for _, n := range chosen {
		f.Steps = append(f.Steps, v.drained(n, Remove))
	}
	f.Room = drain.CheckCapacity(v.watch, policy.Names(chosen), drain.NewSettings(v.settings.Drain))
	return f, nil
}

// refused notes why the operation would not start; another error is returned.
func (f *Forecast) refused(err error) error {
	var refusal *policy.Refusal
	switch {
	case f.Holder != "":
		f.Refusal = fmt.Sprintf("%s has the cluster (state %s)", f.Holder, f.State)
	case errors.As(err, &refusal):
		f.Refusal = refusal.Error()
	default:
		return err
	}
	return nil
}

func (v view) step(n policy.Node, action string) Step {
	return Step{Node: n.Name, Role: n.Role, Version: n.Version, Action: action}
}

func (v view) drained(n policy.Node, action string) Step {
	s := v.step(n, action)
	s.Drain = v.drains.Node(n.Name)
	return s
}
