package randomised

import (
	"fmt"
	"slices"
	"strings"

	"go.temporal.io/sdk/temporal"

	"ebb/activities"
	"ebb/internal/operation"
	"ebb/internal/version"
)

func errorTyped(r *operationRun) string {
	o := r.outcome
	types := []string{operation.TypeRefused, operation.TypeRolledBack, operation.TypeFailed}
	switch {
	case r.err == nil:
		return ""
	case !slices.Contains(types, r.errorType) || r.message == "":
		return fmt.Sprintf("it ended with type %q (%s): %v", r.errorType, r.message, r.err)
	case o.Reason != r.errorType || o.Operation != r.operation || o.Kind != r.kind || o.Cluster != "prod":
		return fmt.Sprintf("type %s, and the outcome %+v", r.errorType, o)
	case (o.Cause.Text == "") != o.Complete || o.Cause.Cancelled != r.cancelled:
		return fmt.Sprintf("complete %v, cancelled %v, and the cause %+v", o.Complete, r.cancelled, o.Cause)
	case r.status.Operation != r.operation || r.status.Kind != r.kind:
		return fmt.Sprintf("the error comes with the status %+v", r.status)
	case r.cancelled && r.cancelledAt.IsZero():
		return "it ended as cancelled and nobody had cancelled it"
	}
	return ""
}

// claimRefused reports whether the operation was refused by Claim itself, whose
// reason is all that there is to say.
func (r *operationRun) claimRefused() bool {
	refused := []string{operation.TypeRefused, operation.TypeConfig}
	return !r.cancelled && slices.Contains(refused, r.outcome.Cause.Type) && r.activityFailed("Claim", "")
}

func messageSaysOutcome(r *operationRun) string {
	if r.err == nil || r.message == r.outcome.String() || r.claimRefused() && strings.HasSuffix(r.message, r.outcome.Cause.Text) {
		return ""
	}
	return fmt.Sprintf("the message is %q, the outcome says %q", r.message, r.outcome)
}

// stateReported: what the cluster is left in, once the operation has had it and
// given it back.
func stateReported(r *operationRun) string {
	got, reported := r.m.record(), r.outcome.State
	unknown := reported == "" && (r.outcome.Complete || r.errorType == operation.TypeRefused)
	if r.err == nil || !r.claimed || got.Holder == r.operation || unknown || reported == got.State {
		return ""
	}
	return fmt.Sprintf("the outcome says state %s and it is %s", reported, got.State)
}

// heldLockReported: a claim that failed is not known to have got the lock.
func heldLockReported(r *operationRun) string {
	if r.m.record().Holder == r.operation && r.outcome.Lock != operation.LockHeld && !r.activityFailed("Claim", "") {
		return fmt.Sprintf("the lock is held and the outcome says %q", r.outcome.Lock)
	}
	if r.outcome.Lock == operation.LockHeld && !r.activityFailed("Release", "") {
		return "the outcome says that the lock is held, and it was released"
	}
	return ""
}

// leftCordonReported: by the operation, or in an upgrade by the node's own workflow.
func leftCordonReported(r *operationRun) string {
	reported := slices.Clone(r.outcome.NotUncordoned)
	for name, child := range r.children {
		if o, ok := nodeOutcome(r.workflowErrors[name]); ok && o.Uncordon != nil && child.Operation == r.operation {
			reported = append(reported, o.NotUncordoned...)
		}
	}
	for _, n := range r.m.nodeList() {
		said := slices.ContainsFunc(reported, func(f operation.NodeFault) bool { return f.Node == n.Name })
		if r.m.nodes[n.Name].cordonOwner == r.operation && !r.cordonsStay() && !said {
			return n.Name + " could not be uncordoned and no outcome says so"
		}
		if said && !r.activityFailed("Uncordon", n.Name) && !r.activityFailed("LeaveCordoned", n.Name) && !r.m.hasEvent(eventLeftCordoned, r.operation, n.Name) {
			return "an outcome says that " + n.Name + " could not be uncordoned, and nothing had failed"
		}
	}
	return ""
}

func removalReported(r *operationRun) string {
	if r.kind != operation.KindScaleDown || r.errorType != operation.TypeFailed || r.outcome.Complete {
		return ""
	}
	var deleted, destroyed []string
	for _, e := range r.m.events {
		switch {
		case e.operation != r.operation:
		case e.kind == eventDeleted:
			deleted = append(deleted, e.node)
		case e.kind == eventDestroyed:
			destroyed = append(destroyed, e.node)
		}
	}
	for _, f := range r.failures { // it was done, but no response came for as long as Ebb waits
		if f.activity == "DeleteNode" && r.m.nodes[f.node].deleted || f.activity == "DestroyMachine" && r.m.destroyed[f.node] {
			return ""
		}
	}
	said, size := r.outcome.Removal, len(r.m.nodeList())
	if said == nil || !slices.Equal(said.Removed, deleted) || !slices.Equal(said.Destroyed, destroyed) || said.Size != size {
		return fmt.Sprintf("deleted %v, destroyed %v, %d nodes left, and the outcome says %+v", deleted, destroyed, size, said)
	}
	for _, name := range said.Remaining {
		if r.m.nodes[name].deleted {
			return name + " is reported as remaining, and is deleted"
		}
	}
	return ""
}

func progressReported(r *operationRun) string {
	u := r.outcome.Upgrade
	if u == nil || r.outcome.Complete {
		return ""
	}
	if hop := r.m.lastEvent(eventHopComplete, r.operation, ""); hop >= 0 && u.Reached != version.Version(r.m.events[hop].detail) && !r.activityFailed("Advance", "") {
		return fmt.Sprintf("the hop to %s is complete, and the outcome says %q", r.m.events[hop].detail, u.Reached)
	}
	done, touched := 0, false
	for name, child := range r.children {
		err, ended := r.workflowErrors[name]
		if child.Target != u.Version || !ended {
			continue
		}
		if err == nil {
			done++
		}
		touched = touched || !temporal.IsCanceledError(err) && !r.childSkipped[name]
	}
	if touched && (u.Done != done || !u.Touched) {
		return fmt.Sprintf("%d nodes went through, and the outcome says %+v", done, *u)
	}
	return ""
}

func attachedISOReported(r *operationRun) string {
	if u := r.outcome.Upgrade; u != nil && u.ISOAttached != nil && !r.activityFailed("DetachISO", u.ISOAttached.Node) {
		return fmt.Sprintf("the outcome says %+v, and nothing had failed", *u.ISOAttached)
	}
	if r.m.settings.Upgrade.ISO {
		return leftISOReported(r)
	}
	for _, f := range r.failures {
		if f.activity == "DetachISO" && (r.outcome.Upgrade.ISOAttached == nil || *r.outcome.Upgrade.ISOAttached != operation.NodeFault{Node: f.node, Text: f.text}) {
			return fmt.Sprintf("the ISO of %s could not be detached (%s), and the outcome says %+v", f.node, f.text, r.outcome.Upgrade.ISOAttached)
		}
	}
	return ""
}

// leftISOReported looks at the drives: what is left in one of them was told.
func leftISOReported(r *operationRun) string {
	for _, n := range r.m.nodeList() {
		iso := r.m.nodes[n.Name].iso
		said := strings.Join(append([]string{r.message, r.status.Warning}, r.upgrade.Warnings...), "\n")
		told := strings.Contains(said, "the ISO is still attached to the machine of "+n.Name+": ") && r.activityFailed("DetachISO", n.Name)
		if r.kind == operation.KindUpgrade && iso != "" && !told {
			return fmt.Sprintf("the ISO of %s is left in the drive of %s", iso, n.Name)
		}
	}
	return ""
}

// missingCapacityReported looks at scale-downs that went through.
func missingCapacityReported(r *operationRun) string {
	if r.kind != operation.KindScaleDown || r.err != nil || !r.m.s.noCapacity || r.m.faultsOff {
		return ""
	}
	if !slices.Contains(strings.Split(r.status.Warning, "; "), podsWithoutRoom) {
		return fmt.Sprintf("the warning is %q", r.status.Warning)
	}
	return ""
}

// allFaultsReported: whatever the checks before the first node have found is in the
// outcome of an upgrade, unless it was cancelled or had to end with another error.
func allFaultsReported(r *operationRun) string {
	if r.kind != operation.KindUpgrade || !r.cancelledAt.IsZero() || r.firstFailure(r.operation) != nil {
		return ""
	}
	var found []string
	for _, f := range r.failures {
		if (f.activity == "Preflight" || f.activity == "Etcd") && f.workflow == r.operation {
			found = append(found, f.text)
		}
	}
	for _, n := range r.m.nodeList() {
		if r.succeeded[r.operation+"Preflight"+n.Name] {
			result, _ := r.m.preflight(activities.PreflightInput{Node: n}) // never fails
			found = append(found, result.Faults...)
		}
	}
	for _, fault := range found {
		if !slices.ContainsFunc(r.outcome.Cause.Faults, func(said string) bool { return strings.Contains(said, fault) }) {
			return fmt.Sprintf("a fault is not reported: %s; %v are", fault, r.outcome.Cause.Faults)
		}
	}
	return ""
}
