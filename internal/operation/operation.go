// Package operation is the contract between those who start and follow
// operations and the workflows and activities that carry them out: names and
// types of what crosses the Temporal engine. It holds no behaviour and no client,
// so that a program that only talks to the engine links neither SSH nor Kubernetes.
//
// Every name and every JSON field in it is in the histories of running
// operations: they may be added to and not changed.
package operation

import (
	"time"

	"ebb/internal/clusterstate"
	"ebb/internal/policy"
	"ebb/internal/version"
)

// Kind is what an operation does; it is also the workflow type.
type Kind string

// Kinds of operations.
const (
	KindDrain     Kind = "Drain"
	KindScaleDown Kind = "ScaleDown"
	KindUpgrade   Kind = "Upgrade"
	KindUncordon  Kind = "Uncordon"
)

// Workflow types that are no operations.
const (
	WorkflowUpgradeNode = "UpgradeNode" // one node of an upgrade, a child of it; its ID is <operation>/<node>
	WorkflowStageNode   = "StageNode"   // the same node before that, with the same ID: fetches what it needs
	WorkflowReconcile   = "Reconcile"   // takes a cluster in Alert back to Running
)

// DrainInput names the nodes to take the load off.
type DrainInput struct {
	Cluster string   `json:"cluster"`
	Nodes   []string `json:"nodes"`
	Strict  bool     `json:"strict,omitempty"` // refuse what is otherwise a warning, see ScaleDownInput
}

// DrainResult lists the nodes that are drained; they stay cordoned.
type DrainResult struct {
	Drained  []string `json:"drained"`
	Warnings []string `json:"warnings,omitempty"` // what the drains have left on the nodes
}

// UncordonInput names the nodes to give back.
type UncordonInput struct {
	Cluster string   `json:"cluster"`
	Nodes   []string `json:"nodes"`
}

// UncordonResult lists what was done with which node.
type UncordonResult struct {
	Uncordoned []string `json:"uncordoned"`
	Skipped    []string `json:"skipped,omitempty"` // schedulable already
}

// ScaleDownInput says what to remove: nodes by name, or a number of workers.
type ScaleDownInput struct {
	Cluster string   `json:"cluster"`
	Nodes   []string `json:"nodes,omitempty"`
	Count   int      `json:"count,omitempty"`
	Strict  bool     `json:"strict,omitempty"` // refuse when pods would find no room, be lost or be down, instead of warning
}

// ScaleDownResult is what became of each node, and the size of the cluster now.
type ScaleDownResult struct {
	Removed   []string `json:"removed"`             // no longer in the cluster
	Destroyed []string `json:"destroyed"`           // their machine as well
	Remaining []string `json:"remaining,omitempty"` // should have gone and are still in the cluster
	Size      int      `json:"size"`                // nodes of the cluster after it
	Warnings  []string `json:"warnings,omitempty"`  // what the drains have left on the nodes, and machines that had volumes
}

// UpgradeInput names the version to bring every node of a cluster to.
type UpgradeInput struct {
	Cluster string `json:"cluster"`
	version.Route
	Strict bool `json:"strict,omitempty"` // refuse what is otherwise a warning, see ScaleDownInput
}

// UpgradeResult lists what was done to which node. Of an upgrade in hops it is
// the last one's.
type UpgradeResult struct {
	Version  version.Version   `json:"version"`
	Hops     []version.Version `json:"hops,omitempty"` // versions that were reached on the way
	Upgraded []string          `json:"upgraded"`
	Skipped  []string          `json:"skipped,omitempty"`  // at the target already
	Warnings []string          `json:"warnings,omitempty"` // what the drains have left on the nodes
}

// UpgradeNodeInput is one node of an upgrade.
type UpgradeNodeInput struct {
	Cluster      string          `json:"cluster"`
	Operation    string          `json:"operation"`
	Node         policy.Node     `json:"node"`
	Target       version.Version `json:"target"`
	Hop          int             `json:"hop,omitempty"` // which hop of the upgrade this is
	Retries      int             `json:"retries"`       // of the drain, and of a script that asks for it
	ReadyTimeout time.Duration   `json:"readyTimeout"`
	Steady       time.Duration   `json:"steady"`
	Deadline     time.Time       `json:"deadline"` // for the drain, and without ScriptTimeout for the script
	// ScriptTimeout is how long the script has from its start on.
	ScriptTimeout time.Duration `json:"scriptTimeout,omitempty"`
	InfraTimeout  time.Duration `json:"infraTimeout,omitempty"` // of a call to the infrastructure
	ISO           bool          `json:"iso,omitempty"`          // the script needs the ISO of the target version
}

// UpgradeNodeResult says whether there was something to do.
type UpgradeNodeResult struct {
	Skipped  bool     `json:"skipped,omitempty"`
	Warnings []string `json:"warnings,omitempty"` // what its drain has left on the node, and what could not be put back
}

// StageNodeInput is one node of an upgrade for which something is fetched. Deadline is for
// the script.
type StageNodeInput struct{ UpgradeNodeInput }

// StageNodeResult is empty.
type StageNodeResult struct{}

// ReconcileInput names the cluster to look after.
type ReconcileInput struct {
	Cluster string `json:"cluster"`
}

// ReconcileResult is how the cluster was found, or left.
type ReconcileResult struct {
	State  clusterstate.State `json:"state"`
	Faults []string           `json:"faults,omitempty"` // what keeps it in Alert
}
