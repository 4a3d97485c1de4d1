package workflows

import (
	"fmt"
	"slices"

	"go.temporal.io/sdk/workflow"

	"ebb/activities"
	"ebb/internal/operation"
	"ebb/internal/policy"
	"ebb/internal/version"
)

// attachesISO reports whether the infrastructure attaches an ISO for the script.
func attachesISO(ctx workflow.Context, wanted bool) bool {
	return wanted && workflow.GetVersion(ctx, "iso-attached", workflow.DefaultVersion, 1) == 1
}

// attachISO attaches the ISO of a version to the machine of a node, unless it is.
func (e *execution) attachISO(ctx workflow.Context, n policy.Node, v version.Version) error {
	_, err := call(e.onInfra(ctx, fmt.Sprintf("attach the ISO of %s to the machine of %s", v, n.Name), infraRetryFor), act.AttachISO,
		activities.AttachISOInput{Cluster: e.cluster, Node: n, Version: v})
	return err
}

// detachISO takes the ISO of a version out of the machine of a node again, cancelled or
// not. It returns what keeps it there, nil = nothing.
func (e *execution) detachISO(ctx workflow.Context, n policy.Node, v version.Version) *operation.NodeFault {
	uncancelled, giveUp := workflow.NewDisconnectedContext(ctx)
	patience := isoRetryFor
	if e.control.givenUp {
		patience = infraTimeout
	}
	e.control.patient = append(e.control.patient, giveUp)
	_, err := call(e.onInfra(uncancelled, "detach the ISO from the machine of "+n.Name, patience), act.DetachISO,
		activities.DetachISOInput{Cluster: e.cluster, Node: n, Version: v})
	if err != nil {
		return &operation.NodeFault{Node: n.Name, Text: e.whyLeft(err)}
	}
	return nil
}

// leaveISO warns of an ISO that could not be detached.
func (e *execution) leaveISO(ctx workflow.Context, left *operation.NodeFault) {
	if left != nil {
		e.leave(ctx, []string{left.ISOText()})
	}
}

// stageISO is of stageHere: it attaches the ISO of the hop to the machine of a node, before its script is run
// for the first time.
func (h *hop) stageISO(ctx workflow.Context, n policy.Node) error {
	if !h.iso {
		return nil
	}
	h.mark(ctx, n.Name, operation.PhaseStaging, 0, fmt.Sprintf("attaching the ISO of %s", h.version))
	h.withISO = append(h.withISO, n)
	return h.attachISO(ctx, n, h.version)
}

// withoutISO notes that a node's own workflow has taken the ISO out.
func (h *hop) withoutISO(n policy.Node) {
	h.withISO = slices.DeleteFunc(h.withISO, func(other policy.Node) bool { return other.Name == n.Name })
}

// detachLeft takes the ISO out of the machines of all nodes that have not been upgraded:
// they were left out, or none was. It returns what keeps it in the first one of them, and
// warns of the others.
func (h *hop) detachLeft(ctx workflow.Context) (first *operation.NodeFault) {
	nodes, faults := h.withISO, map[string]*operation.NodeFault{}
	h.withISO = nil
	uncancelled, _ := workflow.NewDisconnectedContext(ctx)
	_ = each(uncancelled, nodes, preflightParallel, func(ctx workflow.Context, n policy.Node) error {
		faults[n.Name] = h.detachISO(ctx, n, h.version)
		return nil // the others are freed of theirs all the same
	})
	for _, n := range nodes {
		if first == nil {
			first = faults[n.Name]
		} else {
			h.leaveISO(ctx, faults[n.Name])
		}
	}
	return first
}
