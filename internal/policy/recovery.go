package policy

import (
	"fmt"

	"ebb/internal/clusterstate"
)

// Unrecovered says what keeps a cluster in Alert; nothing = it may be Running
// again: every node is Ready, none bears a cordon of Ebb, each kubelet is at the
// version recorded for its node, and, after an upgrade that failed, all kubelets
// are at one version, the old one or the target. A cluster between two versions
// stays in Alert until the upgrade is retried or finished by hand.
func Unrecovered(r clusterstate.Record, nodes []Node) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	var first Node
	for _, n := range ByName(nodes) {
		if !n.Ready {
			fault("node %s is not Ready", n.Name)
		}
		if n.CordonedBy != "" && n.Unschedulable {
			fault("node %s bears the cordon of %s", n.Name, n.CordonedBy)
		}
		if n.Manual {
			continue
		}
		if n.Recorded != "" && n.Recorded != n.Version {
			fault("node %s was upgraded to %s and reports %s", n.Name, n.Recorded, n.Version)
		}
		if first.Name == "" {
			first = n
		}
		if r.Target != "" && first.Version != n.Version {
			fault("node %s is at %s, %s at %s: the upgrade to %s is not complete", n.Name, n.Version, first.Name, first.Version, r.Target)
		}
	}
	return faults
}
