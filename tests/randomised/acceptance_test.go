package randomised

import (
	"slices"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/version"
)

// acceptableTargets are the drawn targets that specAccepts knows about.
var acceptableTargets = []version.Version{defaultTarget, otherPatch, nextMinor}

// policyAccepts returns nil if the cluster takes an upgrade now, by the decision
// that Ebb makes.
func (m *model) policyAccepts(to version.Version) error {
	_, err := m.acceptUpgrade(activities.ClaimInput{State: clusterstate.Upgrading, Route: version.Route{Hops: m.hopsTo(to), Target: to}}, m.record())
	return err
}

// hopsTo returns the hops of a request for an upgrade to a version.
func (m *model) hopsTo(to version.Version) []version.Version {
	if to == m.s.target {
		return m.s.hops
	}
	return nil
}

// specAccepts is the same decision in the words of the specification: a Running
// cluster takes a version that some node has not reached and none is past, one
// minor at a time; one in Alert takes the target of the upgrade that failed, with
// every machine up, or, where none is recorded, a version that a node but not the
// cluster has reached.
func (m *model) specAccepts(r clusterstate.Record, to version.Version) bool {
	if !slices.Contains(acceptableTargets, to) {
		return false
	}
	stops := append(slices.Clone(m.hopsTo(to)), to)
	reached, behind, past, tooFar := 0, 0, 0, 0
	for _, n := range m.nodeList() {
		at := n.Version // all of the drawn versions have one length, so that text can be compared
		switch {
		case at > to:
			past++
		case n.Manual:
		case at == to:
			reached++
		default:
			behind++
			if at < "1.37" && stops[0] == nextMinor {
				tooFar++
			}
		}
	}
	switch {
	case r.State == clusterstate.Running:
		return behind > 0 && past == 0 && tooFar == 0
	case len(m.machinesDown()) > 0:
		return false
	case r.Target != "":
		return slices.Contains(stops, r.Target) || r.Target == otherPatch && slices.Contains(stops, defaultTarget) // a newer patch of it
	case len(stops) > 1: // without a record the hop that was on its way is guessed; internal/policy's tests have the cases
		return m.policyAccepts(to) == nil
	}
	return reached > 0 && (behind > 0 || r.Version != "") && r.Version != to
}
