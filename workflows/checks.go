package workflows

import (
	"fmt"
	"slices"
	"strings"

	"go.temporal.io/sdk/workflow"

	"ebb/activities"
	"ebb/internal/policy"
)

// warnings are what speaks against an operation that could be done all the same.
type warnings []string

// settle puts warnings into the status of the operation, or with strict returns the
// refusal that names them all.
func (e *execution) settle(ctx workflow.Context, found warnings, strict bool) error {
	if strict && len(found) > 0 {
		return &policy.Refusal{Reason: "nothing was touched, because of --strict", Faults: found}
	}
	e.status.Warning = strings.Join(found, "; ")
	e.show(ctx)
	return nil
}

// checkCapacity forecasts whether the pods of nodes that leave find room elsewhere.
func (e *execution) checkCapacity(ctx workflow.Context, nodes []policy.Node) (warnings, error) {
	found, err := call(onAPI(ctx, "do their pods find room elsewhere?"), act.Capacity, activities.CapacityInput{Cluster: e.cluster, Nodes: policy.Names(nodes)})
	if err != nil || found.Warning == "" {
		return nil, err
	}
	return warnings{found.Warning}, nil
}

// checkDrains forecasts the drains of all nodes, before the first of them is touched: what
// an operation would otherwise come to after hours.
func (e *execution) checkDrains(ctx workflow.Context, nodes []policy.Node) (warnings, error) {
	if len(nodes) == 0 || workflow.GetVersion(ctx, "drains-are-checked-first", workflow.DefaultVersion, 1) == workflow.DefaultVersion {
		return nil, nil
	}
	e.step(ctx, "looking at the pods of %d nodes", len(nodes))
	found, err := call(onAPI(ctx, fmt.Sprintf("what speaks against draining %d nodes?", len(nodes))), act.CheckDrains,
		activities.CheckDrainsInput{Cluster: e.cluster, Nodes: policy.Names(nodes)})
	return slices.Clip(warnings(found.Objections)), err
}
