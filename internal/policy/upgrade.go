package policy

import (
	"slices"
	"strings"

	"ebb/internal/clusterstate"
	"ebb/internal/natural"
	"ebb/internal/version"
)

// maxSkew is how many minor versions a kubelet may be behind its API server
// (Kubernetes version skew policy, since 1.28).
const maxSkew = 3

// UpgradeFacts is what the decision to accept an upgrade looks at.
type UpgradeFacts struct {
	Record clusterstate.Record
	Nodes  []Node
	Down   []string // nodes whose machine is known to be down
	Route  version.Route
}

// Acceptance says how an upgrade may start.
type Acceptance struct {
	Retry bool            // it goes on where a failed one stopped
	Next  version.Version // the stop of the route that the nodes are brought to first
}

// AcceptUpgrade says whether an upgrade may start, and whether it is the retry
// of one that stopped part way. The error is a *Refusal that says why not.
//
// A Running cluster takes any target one step away. A cluster in Alert takes
// only the target its failed upgrade was going to: the recorded one, or, where
// nothing is recorded (the upgrade failed before Ebb or under another tool), the
// version that at least one node reached while the cluster as a whole did not.
func AcceptUpgrade(f UpgradeFacts) (Acceptance, error) {
	if err := checkRequest(f); err != nil {
		return Acceptance{}, err
	}
	switch f.Record.State {
	case clusterstate.Running:
		return acceptFresh(f)
	case clusterstate.Alert:
		return acceptRetry(f)
	default:
		return Acceptance{}, refuse("the cluster is in state %s: an upgrade starts from Running, or from Alert to retry", f.Record.State)
	}
}

// checkRequest is what has to hold in any state.
func checkRequest(f UpgradeFacts) error {
	if err := CheckRoute(f.Route); err != nil {
		return err
	}
	if len(f.Nodes) == 0 {
		return refuse("the cluster has no nodes")
	}
	if f.Nodes[0].Role == Worker {
		return refuse("no node has the label node-role.kubernetes.io/control-plane: this is not a cluster kubeadm can upgrade")
	}
	if first := f.Nodes[0]; first.Manual && f.Route.Target.Newer(first.Version) {
		return refuse("%s is the control plane that runs kubeadm upgrade apply for the whole cluster, and its label ebb/manual-upgrade leaves it out: "+
			"bring it to %s by hand first, or remove the label", first.Name, f.Route.Target)
	}
	if faults := checkMachineIDs(f.Nodes); len(faults) > 0 {
		return &Refusal{Reason: "nothing was touched", Faults: faults}
	}
	return nil
}

func acceptFresh(f UpgradeFacts) (Acceptance, error) {
	next := f.Route.Target
	for _, stop := range f.Route.Stops() {
		if lagging(f.Nodes, stop) {
			next = stop
			break
		}
	}
	if ahead := filter(f.Nodes, func(n Node) bool { return n.Version.Newer(next) }); len(ahead) > 0 {
		return Acceptance{}, refuse("%s is older than what %s runs (%s): kubeadm does not downgrade", next, ahead[0].Name, ahead[0].Version)
	}
	controlPlane := oldest(filter(f.Nodes, func(n Node) bool { return n.Role != Worker }))
	if controlPlane != next || !lagging(f.Nodes, next) { // with control planes there already, only workers have to follow
		if err := CheckStep(controlPlane, next); err != nil {
			return Acceptance{}, err
		}
	}
	return Acceptance{Next: next}, checkSkew(f, next)
}

// lagging reports whether a node that is not upgraded by hand is older than v.
func lagging(nodes []Node, v version.Version) bool {
	return slices.ContainsFunc(nodes, func(n Node) bool { return !n.Manual && v.Newer(n.Version) })
}

// checkSkew refuses a version that would leave a kubelet too far behind the API
// server, until its own turn comes or, for one that is upgraded by hand, for good.
func checkSkew(f UpgradeFacts, next version.Version) error {
	for _, n := range f.Nodes {
		to := next
		if n.Manual {
			to = f.Route.Target
		}
		if behind := minorsBehind(n.Version, to); behind > maxSkew {
			return refuse("the kubelet of %s is at %s, %d minors behind %s; Kubernetes supports %d: upgrade or remove that node first",
				n.Name, n.Version, behind, to, maxSkew)
		}
	}
	return nil
}

func acceptRetry(f UpgradeFacts) (Acceptance, error) {
	own, target := ClusterVersion(f.Record, f.Nodes), f.Route.Target
	// A recorded target says that the cluster was not there yet, even when by now
	// every kubelet reports it: the last node may not have become Ready. A cluster that
	// was there once is not when a node has joined at an older version.
	unfinished := (f.Record.Target == target || newerPatch(target, f.Record.Target)) && (f.Record.Version == "" || lagging(f.Nodes, target))
	if target == own && !unfinished {
		return Acceptance{}, refuse("the cluster is in Alert and at %s already: an upgrade to its own version is not a retry", target)
	}
	next, err := failedStop(f, own)
	if err != nil {
		return Acceptance{}, err
	}
	if len(f.Down) > 0 {
		return Acceptance{}, refuse("the machine of %s is down: start it, then retry the upgrade", strings.Join(natural.Sorted(f.Down), ", "))
	}
	return Acceptance{Retry: true, Next: next}, nil
}

// failedStop returns the stop that the failed upgrade of a cluster in Alert was
// going to, or a newer patch of it: the version may have been bad.
func failedStop(f UpgradeFacts, own version.Version) (version.Version, error) {
	stops := f.Route.Stops()
	if recorded := f.Record.Target; recorded != "" {
		i := slices.IndexFunc(stops, func(stop version.Version) bool { return stop == recorded || newerPatch(stop, recorded) })
		if i < 0 {
			return "", refuse("the cluster is in Alert from an upgrade to %s: retry that version or a newer patch of it, or bring the cluster back to Running first", recorded)
		}
		return stops[i], nil
	}
	i := slices.IndexFunc(stops, func(stop version.Version) bool {
		return stop.Newer(own) && slices.ContainsFunc(f.Nodes, func(n Node) bool { return !n.Manual && n.Version == stop })
	})
	if i < 0 {
		return "", refuse("the cluster is in Alert, no failed upgrade is recorded and no node is at %s: there is nothing to retry", f.Route.Target)
	}
	return stops[i], nil
}

// newerPatch reports whether v is a newer patch of the minor of another version.
func newerPatch(v, other version.Version) bool {
	major, minor, ok := v.Minor()
	otherMajor, otherMinor, otherOK := other.Minor()
	return ok && otherOK && major == otherMajor && minor == otherMinor && v.Newer(other)
}

// Reached returns the target of a failed upgrade when every node that is not upgraded by
// hand is at it, otherwise "".
func Reached(r clusterstate.Record, nodes []Node) version.Version {
	if r.Target == "" || oldest(nodes) != r.Target {
		return ""
	}
	return r.Target
}

// ClusterVersion returns the version the cluster as a whole is at: the recorded one
// where there is a record, otherwise the oldest version that a node runs, for a
// cluster is only at a version once every node is.
func ClusterVersion(r clusterstate.Record, nodes []Node) version.Version {
	if r.Version != "" {
		return r.Version
	}
	return oldest(nodes)
}

// oldest returns the oldest version that nodes run, leaving out those upgraded by hand.
func oldest(nodes []Node) version.Version {
	var found version.Version
	for _, n := range nodes {
		if !n.Manual && (found == "" || found.Newer(n.Version)) {
			found = n.Version
		}
	}
	return found
}

// minorsBehind returns how many minors v is behind another version; 0 when it is
// not, or when one of them is no version.
func minorsBehind(v, other version.Version) uint64 {
	major, minor, ok := v.Minor()
	otherMajor, otherMinor, otherOK := other.Minor()
	if !ok || !otherOK || major != otherMajor || minor > otherMinor {
		return 0
	}
	return otherMinor - minor
}

// Finished reports whether a node is done with an upgrade to target: recorded,
// reported by its kubelet, and Ready. The record alone is never trusted. A node
// that is Ready but cordoned is finished and stays cordoned.
func Finished(n Node, target version.Version) bool {
	return n.Recorded == target && n.Version == target && n.Ready
}

// UpgradeOrder splits the nodes of a sorted cluster into control planes, which
// go one at a time, and workers. Nodes that are upgraded by hand are in neither.
func UpgradeOrder(nodes []Node) (controlPlanes, workers []Node) {
	mine := filter(nodes, func(n Node) bool { return !n.Manual })
	return filter(mine, func(n Node) bool { return n.Role != Worker }),
		filter(mine, func(n Node) bool { return n.Role == Worker })
}

// NotReadyFirst puts the workers that are not Ready in front: nothing is lost on them, and
// as long as one of them waits for its upgrade no other has to be out of service.
func NotReadyFirst(workers []Node) []Node {
	sorted := slices.Clone(workers)
	slices.SortStableFunc(sorted, readyLast)
	return sorted
}

func readyLast(a, b Node) int {
	switch {
	case a.Ready == b.Ready:
		return 0
	case b.Ready:
		return -1
	}
	return 1
}

// WorkersAtOnce returns how many workers an upgrade may take out of service at once.
// Workers that are not Ready and not upgraded, as that is done by hand, are out of service
// already. One goes on all the same.
func WorkersAtOnce(nodes []Node, maxUnavailable int) int {
	down := filter(nodes, func(n Node) bool { return n.Role == Worker && n.Manual && !n.Ready })
	return max(maxUnavailable-len(down), 1)
}
