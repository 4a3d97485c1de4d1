package plan

import (
	"ebb/internal/clusterstate"
)

// UpgradeFacts is what the decision to accept an upgrade looks at.
type UpgradeFacts struct {
	Record clusterstate.Record
	Nodes  []Node
	Down   []string // nodes whose machine is known to be down
	Target string
}

// AcceptUpgrade says whether an upgrade may start, and whether it is the retry
// of one that stopped part way. The error is a *Refusal that says why not.
//
// A Running cluster takes any target one step away. A cluster in Alert takes
// only the target its failed upgrade was going to: the recorded one, or, where
// nothing is recorded (the upgrade failed before Ebb or under another tool), the
// version that at least one node reached while the cluster as a whole did not.
func AcceptUpgrade(f UpgradeFacts) (retry bool, err error) {
	if _, err := ParseVersion(f.Target); err != nil {
		return false, refuse("%v", err)
	}
	if len(f.Nodes) == 0 {
		return false, refuse("the cluster has no nodes")
	}
	if f.Nodes[0].Role == Worker {
		return false, refuse("no node has the label node-role.kubernetes.io/control-plane: this is not a cluster kubeadm can upgrade")
	}
	switch f.Record.State {
	case clusterstate.Running:
		return false, acceptFresh(f)
	case clusterstate.Alert:
		return true, acceptRetry(f)
	default:
		return false, refuse("the cluster is in state %s: an upgrade starts from Running, or from Alert to retry", f.Record.State)
	}
}

func acceptFresh(f UpgradeFacts) error {
	if ahead := filter(f.Nodes, func(n Node) bool { return newer(n.Version, f.Target) }); len(ahead) > 0 {
		return refuse("%s is older than what %s runs (%s): kubeadm does not downgrade", Canonical(f.Target), ahead[0].Name, Canonical(ahead[0].Version))
	}
	return CheckStep(ClusterVersion(f), f.Target)
}

func acceptRetry(f UpgradeFacts) error {
	if SameVersion(f.Target, ClusterVersion(f)) {
		return refuse("the cluster is in Alert and at %s already: an upgrade to its own version is not a retry", Canonical(f.Target))
	}
	if recorded := f.Record.Target; recorded != "" {
		if !SameVersion(recorded, f.Target) {
			return refuse("the cluster is in Alert from an upgrade to %s: retry that version, or bring the cluster back to Running first", Canonical(recorded))
		}
	} else {
		reached := filter(f.Nodes, func(n Node) bool { return !n.Manual && SameVersion(n.Version, f.Target) })
		if len(reached) == 0 {
			return refuse("the cluster is in Alert, no failed upgrade is recorded and no node is at %s: there is nothing to retry", Canonical(f.Target))
		}
	}
	if len(f.Down) > 0 {
		return refuse("the machine of %s is down: start it, then retry the upgrade", f.Down[0])
	}
	return nil
}

// ClusterVersion is the version the cluster as a whole is at: the recorded one
// where there is a record, otherwise the oldest version that a node runs, for a
// cluster is only at a version once every node is.
func ClusterVersion(f UpgradeFacts) string {
	if f.Record.Version != "" {
		return f.Record.Version
	}
	oldest := ""
	for _, n := range f.Nodes {
		if !n.Manual && (oldest == "" || newer(oldest, n.Version)) {
			oldest = n.Version
		}
	}
	return oldest
}

func newer(a, b string) bool {
	va, errA := ParseVersion(a)
	vb, errB := ParseVersion(b)
	return errA == nil && errB == nil && va.GreaterThan(vb)
}

// Finished reports whether a node is done with an upgrade to target: recorded,
// reported by its kubelet, and Ready. The record alone is never trusted. A node
// that is Ready but cordoned is finished and stays cordoned.
func Finished(n Node, target string) bool {
	return SameVersion(n.Recorded, target) && SameVersion(n.Version, target) && n.Ready
}

// UpgradeOrder splits the nodes of a sorted cluster into control planes, which
// go one at a time, and workers. Nodes that are upgraded by hand are in neither.
func UpgradeOrder(nodes []Node) (controlPlanes, workers []Node) {
	mine := filter(nodes, func(n Node) bool { return !n.Manual })
	return filter(mine, func(n Node) bool { return n.Role != Worker }),
		filter(mine, func(n Node) bool { return n.Role == Worker })
}
