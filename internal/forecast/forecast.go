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

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/activities"
	"ebb/internal/capacity"
	"ebb/internal/cluster"
	"ebb/internal/clusterstate"
	"ebb/internal/config"
	"ebb/internal/drain"
	"ebb/internal/plan"
)

// Forecast is what an operation would do.
type Forecast struct {
	Cluster string             `json:"cluster"`
	State   clusterstate.State `json:"state"`
	Holder  string             `json:"holder,omitempty"` // the operation that has the cluster
	Version string             `json:"version"`          // of the cluster as a whole
	Refusal string             `json:"refusal,omitempty"`
	Retry   bool               `json:"retry,omitempty"`  // it would go on where a failed upgrade stopped
	Target  string             `json:"target,omitempty"` // the version that comes next
	Hops    []string           `json:"hops,omitempty"`   // the versions after that
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
	Node    string         `json:"node"`
	Role    plan.Role      `json:"role"`
	Version string         `json:"version"`
	Action  string         `json:"action"`
	Drain   drain.Forecast `json:"drain,omitzero"`
}

// view is a cluster as it is now.
type view struct {
	settings config.Cluster
	record   clusterstate.Record
	nodes    []plan.Node
	watch    *cluster.Watch
}

func look(ctx context.Context, c *cluster.Cluster) (view, error) {
	settings, err := c.Settings()
	if err != nil {
		return view{}, err
	}
	v := view{settings: settings}
	if v.record, err = clusterstate.NewStore(c.Client, time.Now).Get(ctx); err != nil {
		return view{}, err
	}
	if v.watch, err = c.Watch(ctx); err != nil {
		return view{}, fmt.Errorf("watch cluster %s: %w", c.Name, err)
	}
	list, err := c.Client.CoreV1().Nodes().List(ctx, meta.ListOptions{})
	if err != nil {
		return view{}, fmt.Errorf("list the nodes of %s: %w", c.Name, err)
	}
	v.nodes = activities.PlanNodes(list.Items)
	return v, nil
}

func (v view) forecast(name string) Forecast {
	return Forecast{
		Cluster: name, State: v.record.State, Holder: v.record.Holder,
		Version: plan.Canonical(plan.ClusterVersion(plan.UpgradeFacts{Record: v.record, Nodes: v.nodes})),
	}
}

// ofUpgrade is what an upgrade would do.
func ofUpgrade(ctx context.Context, c *cluster.Cluster, hops []string, target string) (Forecast, error) {
	v, err := look(ctx, c)
	if err != nil {
		return Forecast{}, err
	}
	f := v.forecast(c.Name)
	accepted, err := plan.AcceptUpgrade(plan.UpgradeFacts{Record: v.record, Nodes: v.nodes, Hops: hops, Target: target})
	if err := f.refused(err); err != nil {
		return Forecast{}, err
	}
	stations := append(slices.Clone(hops), target)[accepted.Station:]
	f.Retry, f.Target, f.Hops = accepted.Retry, plan.Canonical(stations[0]), stations[1:]
	controlPlanes, workers := plan.UpgradeOrder(v.nodes)
	f.Parallel = v.settings.Upgrade.Unavailable(len(workers))
	for _, n := range slices.Concat(controlPlanes, workers) {
		f.Steps = append(f.Steps, v.upgrade(n, f.Target))
	}
	for _, n := range v.nodes {
		if n.Manual {
			f.Steps = append(f.Steps, v.step(n, ByHand))
		}
	}
	unfinished := slices.DeleteFunc(slices.Clone(controlPlanes), func(n plan.Node) bool { return plan.Finished(n, f.Target) })
	f.Unfit = plan.UnfitControlPlanes(v.nodes, plan.NextControlPlane(unfinished))
	return f, nil
}

func (v view) upgrade(n plan.Node, target string) Step {
	switch {
	case plan.Finished(n, target):
		return v.step(n, Skip)
	case n.Role == plan.FirstControlPlane:
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
	chosen, err := plan.SelectScaleDown(v.nodes, plan.ScaleDownRequest{Names: names, Count: count, MinWorkers: v.settings.Scale.MinWorkers})
	if err := f.refused(err); err != nil {
		return Forecast{}, err
	}
	for _, n := range chosen {
		f.Steps = append(f.Steps, v.drained(n, Remove))
	}
	f.Room = drain.Room(v.watch, plan.Names(chosen), drain.NewSettings(v.settings.Drain))
	return f, nil
}

// refused notes why the operation would not start; another error is returned.
func (f *Forecast) refused(err error) error {
	var refusal *plan.Refusal
	switch {
	case f.Holder != "":
		f.Refusal = fmt.Sprintf("%s has the cluster (state %s)", f.Holder, f.State)
	case errors.As(err, &refusal):
		f.Refusal = refusal.Reason
	default:
		return err
	}
	return nil
}

func (v view) step(n plan.Node, action string) Step {
	return Step{Node: n.Name, Role: n.Role, Version: plan.Canonical(n.Version), Action: action}
}

func (v view) drained(n plan.Node, action string) Step {
	s := v.step(n, action)
	s.Drain = drain.Foresee(v.watch, n.Name, drain.NewSettings(v.settings.Drain))
	return s
}
