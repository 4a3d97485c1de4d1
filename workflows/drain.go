package workflows

import (
	"go.temporal.io/sdk/workflow"

	"ebb/internal/clusterstate"
	"ebb/internal/operation"
	"ebb/internal/policy"
	"ebb/internal/version"
)

// Drain takes the load off nodes and leaves them cordoned. If one of them cannot
// be drained, every node that was cordoned for it is uncordoned again.
func Drain(ctx workflow.Context, in operation.DrainInput) (operation.DrainResult, error) {
	e, err := begin(ctx, operation.KindDrain, in.Cluster, "")
	if err != nil {
		return operation.DrainResult{}, err
	}
	// 1. Take the cluster.
	if err := e.claim(ctx, clusterstate.Draining, version.Route{}); err != nil {
		return operation.DrainResult{}, err
	}
	// 2. Check the request before anything is touched.
	nodes, err := policy.Named(e.survey.Nodes, in.Nodes)
	if err != nil {
		return operation.DrainResult{}, e.abort(ctx, err)
	}
	e.follow(ctx, nodes)
	found, err := e.checkDrains(ctx, nodes, nil)
	if err == nil {
		err = e.settle(ctx, found, in.Strict)
	}
	if err != nil {
		return operation.DrainResult{}, e.abort(ctx, err)
	}
	// 3. Cordon them all, then drain them; or take it all back.
	scale := e.survey.Scale
	e.status.Deadline = workflow.Now(ctx).Add(scale.Timeout)
	if err := e.cordonAndDrain(ctx, nodes, scale.MaxParallel, scale.Attempts); err != nil {
		return operation.DrainResult{}, e.rollBack(ctx, err, nodes)
	}
	// 4. Give the cluster back; the nodes stay cordoned.
	result := operation.DrainResult{Drained: policy.Names(nodes), Warnings: e.left.bounded()}
	if err := e.complete(ctx, e.from, "", operation.Outcome{Drained: result.Drained}); err != nil {
		return operation.DrainResult{}, err
	}
	return result, nil
}
