package workflows

import (
	"strings"

	"go.temporal.io/sdk/workflow"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/operation"
	"ebb/internal/policy"
	"ebb/internal/version"
)

// uncordonParallel bounds how many nodes are uncordoned at once.
const uncordonParallel = 10

// Uncordon gives back what a drain took: it makes nodes schedulable that operations have left
// cordoned. While it has the cluster no other operation runs, so that nobody needs those
// cordons any more.
func Uncordon(ctx workflow.Context, in operation.UncordonInput) (operation.UncordonResult, error) {
	e, err := begin(ctx, operation.KindUncordon, in.Cluster, "")
	if err != nil {
		return operation.UncordonResult{}, err
	}
	// 1. Take the cluster.
	if err := e.claim(ctx, clusterstate.Draining, version.Route{}); err != nil {
		return operation.UncordonResult{}, err
	}
	// 2. Check the request before anything is touched.
	nodes, err := policy.SelectUncordon(e.survey.Nodes, in.Nodes)
	if err != nil {
		return operation.UncordonResult{}, e.abort(ctx, err)
	}
	e.follow(ctx, nodes)
	// 3. Uncordon them.
	result, err := e.giveBack(ctx, nodes)
	if err != nil {
		return operation.UncordonResult{}, e.notGivenBack(ctx, err, nodes, result)
	}
	// 4. Give the cluster back in the state it came from.
	done := operation.Outcome{Uncordon: operation.Uncordon{Uncordoned: result.Uncordoned}}
	if err := e.complete(ctx, e.from, "", done); err != nil {
		return operation.UncordonResult{}, err
	}
	return result, nil
}

// giveBack uncordons nodes. After a failure no other is begun.
func (e *execution) giveBack(ctx workflow.Context, nodes []policy.Node) (result operation.UncordonResult, err error) {
	e.step(ctx, "uncordoning %s", strings.Join(policy.Names(nodes), ", "))
	uncordoned := map[string]bool{}
	err = each(ctx, nodes, uncordonParallel, func(ctx workflow.Context, n policy.Node) error {
		if err := e.awaitResume(ctx); err != nil {
			return err
		}
		if !n.Unschedulable {
			e.mark(ctx, n.Name, operation.PhaseSkipped, 0, "schedulable already")
			return nil
		}
		e.mark(ctx, n.Name, operation.PhaseUncordoning, 0, "")
		done, err := call(onAPI(ctx, "uncordon "+n.Name), act.Uncordon,
			activities.NodeInput{Cluster: e.cluster, Operation: n.CordonedBy, Node: n.Name})
		switch {
		case err != nil:
			e.mark(ctx, n.Name, operation.PhaseFailed, 0, reason(err))
		case done.Uncordoned:
			uncordoned[n.Name] = true
			e.mark(ctx, n.Name, operation.PhaseDone, 0, "cordoned by "+n.CordonedBy)
		default:
			e.mark(ctx, n.Name, operation.PhaseSkipped, 0, "its cordon is gone already")
		}
		return err
	})
	for _, n := range nodes {
		switch {
		case uncordoned[n.Name]:
			result.Uncordoned = append(result.Uncordoned, n.Name)
		case err == nil:
			result.Skipped = append(result.Skipped, n.Name)
		}
	}
	return result, err
}

// notGivenBack leaves the cluster as it came, with some of the nodes uncordoned.
func (e *execution) notGivenBack(ctx workflow.Context, cause error, nodes []policy.Node, result operation.UncordonResult) error {
	kind := operation.TypeFailed
	if len(result.Uncordoned) == 0 {
		kind = operation.TypeRolledBack
	}
	o := e.outcome(kind, cause)
	o.State, o.Uncordoned = e.from, result.Uncordoned
	for i, n := range nodes {
		if e.status.Nodes[i].Phase == operation.PhaseFailed {
			o.NotUncordoned = append(o.NotUncordoned, operation.NodeFault{Node: n.Name, Text: e.status.Nodes[i].Detail})
		}
	}
	return e.fail(ctx, o)
}
