package plan

import (
	"slices"
	"strings"

	"ebb/internal/clusterstate"
)

// maxSkew is how many minor versions a kubelet may be behind its API server
// (Kubernetes version skew policy, since 1.28).
const maxSkew = 3

// UpgradeFacts is what the decision to accept an upgrade looks at.
type UpgradeFacts struct {
	Record clusterstate.Record
	Nodes  []Node
	Down   []string // nodes whose machine is known to be down
	Hops   []string // versions to stop at on the way, one minor apart
	Target string
}

// stations are the versions that the upgrade stops at, the target last.
func (f UpgradeFacts) stations() []string { return append(slices.Clone(f.Hops), f.Target) }

// Acceptance says how an upgrade may start.
type Acceptance struct {
	Retry   bool // it goes on where a failed one stopped
	Station int  // which of the hops, or after them the target, is next
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
	if err := CheckRoute(f.Hops, f.Target); err != nil {
		return err
	}
	if len(f.Nodes) == 0 {
		return refuse("the cluster has no nodes")
	}
	if f.Nodes[0].Role == Worker {
		return refuse("no node has the label node-role.kubernetes.io/control-plane: this is not a cluster kubeadm can upgrade")
	}
	return nil
}

func acceptFresh(f UpgradeFacts) (Acceptance, error) {
	stations := f.stations()
	at := slices.IndexFunc(stations, func(station string) bool {
		return slices.ContainsFunc(f.Nodes, func(n Node) bool { return !n.Manual && newer(station, n.Version) })
	})
	if at < 0 {
		at = len(stations) - 1
	}
	next := stations[at]
	if ahead := filter(f.Nodes, func(n Node) bool { return newer(n.Version, next) }); len(ahead) > 0 {
		return Acceptance{}, refuse("%s is older than what %s runs (%s): kubeadm does not downgrade", Canonical(next), ahead[0].Name, Canonical(ahead[0].Version))
	}
	controlPlane := oldest(filter(f.Nodes, func(n Node) bool { return n.Role != Worker }))
	lagging := slices.ContainsFunc(f.Nodes, func(n Node) bool { return !n.Manual && newer(next, n.Version) })
	if !SameVersion(controlPlane, next) || !lagging { // with control planes there already, only workers have to follow
		if err := CheckStep(controlPlane, next); err != nil {
			return Acceptance{}, err
		}
	}
	return Acceptance{Station: at}, checkSkew(f, next)
}

// checkSkew refuses a version that would leave a kubelet too far behind the API
// server, until its own turn comes or, for one that is upgraded by hand, for good.
func checkSkew(f UpgradeFacts, next string) error {
	for _, n := range f.Nodes {
		to := next
		if n.Manual {
			to = f.Target
		}
		if behind := minorsBehind(n.Version, to); behind > maxSkew {
			return refuse("the kubelet of %s is at %s, %d minors behind %s; Kubernetes supports %d: upgrade or remove that node first",
				n.Name, Canonical(n.Version), behind, Canonical(to), maxSkew)
		}
	}
	return nil
}

func acceptRetry(f UpgradeFacts) (Acceptance, error) {
	own := ClusterVersion(f)
	// A recorded target says that the cluster was not there yet, even when by now
	// every kubelet reports it: the last node may not have become Ready.
	unfinished := f.Record.Version == "" && SameVersion(f.Record.Target, f.Target)
	if SameVersion(f.Target, own) && !unfinished {
		return Acceptance{}, refuse("the cluster is in Alert and at %s already: an upgrade to its own version is not a retry", Canonical(f.Target))
	}
	at, err := stopped(f, own)
	if err != nil {
		return Acceptance{}, err
	}
	if len(f.Down) > 0 {
		return Acceptance{}, refuse("the machine of %s is down: start it, then retry the upgrade", strings.Join(f.Down, ", "))
	}
	return Acceptance{Retry: true, Station: at}, nil
}

// stopped is the station that the failed upgrade of a cluster in Alert was going to.
func stopped(f UpgradeFacts, own string) (int, error) {
	if recorded := f.Record.Target; recorded != "" {
		at := slices.IndexFunc(f.stations(), func(s string) bool { return SameVersion(s, recorded) })
		if at < 0 {
			return 0, refuse("the cluster is in Alert from an upgrade to %s: retry that version, or bring the cluster back to Running first", Canonical(recorded))
		}
		return at, nil
	}
	at := slices.IndexFunc(f.stations(), func(s string) bool {
		return newer(s, own) && slices.ContainsFunc(f.Nodes, func(n Node) bool { return !n.Manual && SameVersion(n.Version, s) })
	})
	if at < 0 {
		return 0, refuse("the cluster is in Alert, no failed upgrade is recorded and no node is at %s: there is nothing to retry", Canonical(f.Target))
	}
	return at, nil
}

// ClusterVersion is the version the cluster as a whole is at: the recorded one
// where there is a record, otherwise the oldest version that a node runs, for a
// cluster is only at a version once every node is.
func ClusterVersion(f UpgradeFacts) string {
	if f.Record.Version != "" {
		return f.Record.Version
	}
	return oldest(f.Nodes)
}

// oldest is the oldest version that nodes run, leaving out those upgraded by hand.
func oldest(nodes []Node) string {
	version := ""
	for _, n := range nodes {
		if !n.Manual && (version == "" || newer(version, n.Version)) {
			version = n.Version
		}
	}
	return version
}

func newer(a, b string) bool {
	va, errA := ParseVersion(a)
	vb, errB := ParseVersion(b)
	return errA == nil && errB == nil && va.GreaterThan(vb)
}

// minorsBehind is how many minors a version is behind another; 0 when it is not,
// or when one of them is no version.
func minorsBehind(version, other string) uint64 {
	v, errV := ParseVersion(version)
	o, errO := ParseVersion(other)
	if errV != nil || errO != nil || v.Major() != o.Major() || v.Minor() > o.Minor() {
		return 0
	}
	return o.Minor() - v.Minor()
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
