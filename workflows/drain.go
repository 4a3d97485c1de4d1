package workflows

import (
	"strings"

	"go.temporal.io/sdk/workflow"

	"ebb/internal/clusterstate"
	"ebb/internal/plan"
)

// DrainInput names the nodes to take the load off.
type DrainInput struct {
	Cluster string   `json:"cluster"`
	Nodes   []string `json:"nodes"`
}

// DrainResult lists the nodes that are drained; they stay cordoned.
type DrainResult struct {
	Drained []string `json:"drained"`
}

// Drain takes the load off nodes and leaves them cordoned. If one of them cannot
// be drained, every node that was cordoned for it is uncordoned again.
func Drain(ctx workflow.Context, in DrainInput) (DrainResult, error) {
	o, err := begin(ctx, KindDrain, in.Cluster, "")
	if err != nil {
		return DrainResult{}, err
	}
	// 1. Take the cluster.
	if err := o.claim(ctx, clusterstate.Draining); err != nil {
		return DrainResult{}, err
	}
	// 2. Check the request before anything is touched.
	nodes, err := plan.Named(o.survey.Nodes, in.Nodes)
	if err != nil {
		return DrainResult{}, o.giveBack(ctx, err)
	}
	o.follow(ctx, nodes)
	// 3. Cordon them all, then drain them; or take it all back.
	scale := o.survey.Scale
	o.status.Deadline = workflow.Now(ctx).Add(scale.Timeout)
	if err := o.evacuate(ctx, nodes, scale.MaxParallel, scale.Attempts); err != nil {
		return DrainResult{}, o.end(ctx, err, ErrRolledBack, o.from, "rolled back: "+o.uncordon(ctx, nodes))
	}
	// 4. Give the cluster back; the nodes stay cordoned.
	if err := o.finish(ctx, o.from, "", "drained "+strings.Join(in.Nodes, ", ")); err != nil {
		return DrainResult{}, err
	}
	return DrainResult{Drained: plan.Names(nodes)}, nil
}
