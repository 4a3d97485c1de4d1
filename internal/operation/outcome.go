package operation

import (
	"fmt"
	"strings"

	"ebb/internal/clusterstate"
	"ebb/internal/natural"
	"ebb/internal/version"
)

// Outcome is how an operation that did not go through left its cluster. It is in
// the details of the workflow's error, behind the Status, and of a cancelled
// workflow behind the message, the type and the Status. String puts it into words;
// programs read its fields.
type Outcome struct {
	Operation string             `json:"operation"`
	Kind      Kind               `json:"kind"`
	Cluster   string             `json:"cluster"`
	Reason    string             `json:"reason"`             // TypeRefused, TypeRolledBack or TypeFailed
	Complete  bool               `json:"complete,omitempty"` // everything was done, and only the lock could not be released
	Cause     Cause              `json:"cause,omitzero"`     // what went wrong first
	State     clusterstate.State `json:"state,omitempty"`    // that the cluster is left in; empty = it is not known
	Lock      Lock               `json:"lock,omitempty"`
	LockFault string             `json:"lockFault,omitempty"` // why the lock is still held

	Unattended string `json:"unattended,omitempty"` // why no reconciler looks at the cluster, which is in Alert

	Uncordon
	Drained []string         `json:"drained,omitempty"` // of a drain that is complete
	Removal *ScaleDownResult `json:"removal,omitempty"` // of a scale-down that had begun to remove nodes
	Upgrade *UpgradeProgress `json:"upgrade,omitempty"` // of an upgrade
}

// Cause is an error as it is told to people, and its type for programs.
type Cause struct {
	Type      string `json:"type,omitempty"` // one of the types in this package; empty = another
	Text      string `json:"text"`
	Cancelled bool   `json:"cancelled,omitempty"`

	Faults []string `json:"faults,omitempty"` // of a refusal: what is wrong with nodes and the control plane, all of it
}

// Lock is what became of the lock of the cluster.
type Lock string

// What may become of the lock.
const (
	LockReleased Lock = "released"
	LockHeld     Lock = "held" // it could not be released
	LockLost     Lock = "lost" // somebody else had taken it away
)

// Uncordon is what became of the cordons of an operation when it took them back.
type Uncordon struct {
	Uncordoned    []string    `json:"uncordoned,omitempty"`
	NotUncordoned []NodeFault `json:"notUncordoned,omitempty"` // cordons that are still there
}

// NodeFault is something that could not be done at a node, and why.
type NodeFault struct {
	Node string `json:"node"`
	Text string `json:"text"`
}

// ISOText returns the words for an ISO that could not be detached.
func (f NodeFault) ISOText() string {
	return fmt.Sprintf("the ISO is still attached to the machine of %s: %s", f.Node, f.Text)
}

// UpgradeProgress is how far an upgrade, or one hop of it, has come.
type UpgradeProgress struct {
	Version version.Version `json:"version"`           // that nodes are being brought to
	Reached version.Version `json:"reached,omitempty"` // the last hop that is complete
	Done    int             `json:"done"`              // nodes at Version
	Total   int             `json:"total"`
	Touched bool            `json:"touched,omitempty"` // work on a node had begun

	ISOAttached *NodeFault `json:"isoAttached,omitempty"` // an ISO that could not be detached from a machine
}

// String returns what was done, the state of the cluster, and last, as it may be
// long, what went wrong.
func (o Outcome) String() string {
	text := fmt.Sprintf("%s of cluster %s (%s): %s", o.Kind, o.Cluster, o.Operation, o.Done())
	if o.State != "" {
		text += fmt.Sprintf("; the cluster is in state %s", o.State)
	}
	if o.Lock != "" && o.Lock != LockReleased {
		text += "; " + o.LockText()
	}
	if o.Unattended != "" {
		text += "; " + Unattended(o.Unattended)
	}
	if o.Cause.Text != "" {
		text += "; cause: " + o.Cause.Text
	}
	return text
}

// LockText returns what is wrong with the lock; "" when it was released.
func (o Outcome) LockText() string {
	switch o.Lock {
	case LockHeld:
		return "the lock could not be released: " + o.LockFault
	case LockLost:
		return "somebody else had taken the lock away"
	default:
		return ""
	}
}

// Unattended returns that no reconciler looks at a cluster in Alert, and why.
func Unattended(fault string) string {
	return "the reconciler could not be resumed, so that the cluster stays in Alert until the next operation: " + fault
}

// Done returns what was done, in words.
func (o Outcome) Done() string {
	switch {
	case o.Reason == TypeRefused:
		return "nothing was changed"
	case o.Kind == KindUncordon:
		return o.of("no node was uncordoned")
	case o.Upgrade != nil && o.Complete:
		return fmt.Sprintf("every node is at %s", o.Upgrade.Version)
	case o.Upgrade != nil && o.Cause.Cancelled && len(o.NotUncordoned) > 0: // otherwise the cause says it
		return o.Upgrade.String() + "; " + o.Uncordon.String()
	case o.Upgrade != nil:
		return o.Upgrade.String()
	case o.Removal != nil && o.Complete:
		return "removed " + names(o.Removal.Removed)
	case o.Removal != nil:
		return fmt.Sprintf("removed %s, destroyed %s, still in the cluster %s (%s); the cluster has %d nodes",
			names(o.Removal.Removed), names(o.Removal.Destroyed), names(o.Removal.Remaining), o.Uncordon, o.Removal.Size)
	case o.Complete:
		return "drained " + names(o.Drained)
	case o.Kind == KindScaleDown:
		return "rolled back: nothing was removed, " + o.Uncordon.String()
	default:
		return "rolled back: " + o.Uncordon.String()
	}
}

// String returns how far the upgrade has come, and how it goes on.
func (u UpgradeProgress) String() string {
	text := "no node was touched"
	switch {
	case u.Touched:
		text = fmt.Sprintf("%d of %d nodes are at %s; find the cause, then start the upgrade again: it goes on where it stopped", u.Done, u.Total, u.Version)
	case u.Reached != "":
		text = fmt.Sprintf("every node is at %s, the step to %s was not begun", u.Reached, u.Version)
	}
	if u.ISOAttached != nil {
		text += "; " + u.ISOAttached.ISOText()
	}
	return text
}

// String returns which nodes were uncordoned and which could not be.
func (u Uncordon) String() string { return u.of("no node bore a cordon of this operation") }

// of returns the same, with the words for none at all.
func (u Uncordon) of(none string) string {
	text := none
	if len(u.Uncordoned) > 0 {
		text = "uncordoned " + names(u.Uncordoned)
	}
	if len(u.NotUncordoned) > 0 {
		left := make([]string, len(u.NotUncordoned))
		for i, f := range u.NotUncordoned {
			left[i] = fmt.Sprintf("%s (%s)", f.Node, f.Text)
		}
		text += "; could not uncordon " + names(left)
	}
	return text
}

// Step is a step of the upgrade of one node.
type Step string

// Steps of the upgrade of a node, in their order.
const (
	StepCheck    Step = "check"
	StepISO      Step = "ISO"
	StepCordon   Step = "cordon"
	StepDrain    Step = "drain"
	StepScript   Step = "script"
	StepVersion  Step = "version check"
	StepUncordon Step = "uncordon"
	StepReady    Step = "ready"
)

// NodeOutcome is how an upgrade that failed left a node. It is in the details of
// the error of WorkflowUpgradeNode.
type NodeOutcome struct {
	Node    string `json:"node"`
	Machine string `json:"machine"` // status.nodeInfo.machineID
	Step    Step   `json:"step"`
	Cause   Cause  `json:"cause"`
	*Uncordon
}

// String returns the node and its machine, the step, what was taken back, and what
// went wrong.
func (o NodeOutcome) String() string {
	back := ""
	if o.Uncordon != nil {
		back = o.Uncordon.String()
	}
	if o.Cause.Cancelled {
		return fmt.Sprintf("node %s: cancelled during %s; %s", o.Node, o.Step, back)
	}
	if back != "" {
		back = " (" + back + ")"
	}
	return fmt.Sprintf("node %s (machine %s), step %s%s: %s", o.Node, o.Machine, o.Step, back, o.Cause.Text)
}

// names returns a list for a person.
func names(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(natural.Sorted(list), ", ")
}
