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
	e.warn(ctx, found...)
	return nil
}

// shownWarnings is how many warnings the status of an operation and its result hold.
const shownWarnings = 50

// warn adds warnings to the status of the operation, each once.
func (e *execution) warn(ctx workflow.Context, texts ...string) {
	for _, text := range texts {
		if !slices.Contains(e.notes, text) {
			e.notes = append(e.notes, text)
		}
	}
	e.status.Warning = strings.Join(e.notes.bounded(), "; ")
	e.show(ctx)
}

// leave notes what a drain has left behind: in the status now, and later in the result.
func (e *execution) leave(ctx workflow.Context, texts []string) {
	if len(texts) > 0 {
		e.left = append(e.left, texts...)
		e.warn(ctx, texts...)
	}
}

// bounded returns the first of many warnings, and how many more there are.
func (w warnings) bounded() []string {
	if more := len(w) - shownWarnings; more > 0 {
		return append(slices.Clone(w[:shownWarnings]), fmt.Sprintf("%d more warnings", more))
	}
	return w
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
func (e *execution) checkDrains(ctx workflow.Context, nodes, down []policy.Node) (warnings, error) {
	if len(nodes)+len(down) == 0 || workflow.GetVersion(ctx, "drains-are-checked-first", workflow.DefaultVersion, 1) == workflow.DefaultVersion {
		return nil, nil
	}
	e.step(ctx, "looking at the pods of %d nodes", len(nodes))
	found, err := call(onAPI(ctx, fmt.Sprintf("what speaks against draining %d nodes?", len(nodes))), act.CheckDrains,
		activities.CheckDrainsInput{Cluster: e.cluster, Nodes: policy.Names(nodes), Down: policy.Names(down)})
	return slices.Clip(warnings(found.Objections)), err
}
