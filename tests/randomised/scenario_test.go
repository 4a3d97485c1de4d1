package randomised

import (
	"fmt"
	"strings"
	"time"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/operation"
	"ebb/internal/policy"
	"ebb/internal/version"
)

// Versions that are drawn.
const (
	startVersion  = "1.36.3"
	defaultTarget = "1.37.2" // of nearly every upgrade
	otherPatch    = "1.37.1"
	nextMinor     = "1.38.1" // of upgrades in hops, over defaultTarget
)

// Who may hold the lock of the cluster, or have cordoned nodes, before the run.
const (
	deadHolder    = "dead-0"  // an operation whose workflow is over and that has not cleaned up
	runningHolder = "live-0"  // an operation that runs
	earlierDrain  = "drain-0" // a drain that went through: its nodes stay cordoned
	kubectl       = "kubectl" // a person; leaves no annotation
)

// epoch is when every run begins.
var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// scenario is everything that is drawn before a run begins.
type scenario struct {
	seed uint64

	// The cluster.
	nodes       []policy.Node
	machineDown map[string]bool
	cordonOwner map[string]string   // who has cordoned a node
	record      clusterstate.Record // on its Lease
	noCapacity  bool                // pods of nodes that leave find no room

	// The request.
	kind      operation.Kind
	nodeNames []string // to drain or remove
	count     int      // of nodes to remove
	strict    bool     // refuse to remove nodes whose pods find no room
	hops      []version.Version
	target    version.Version

	// The configuration.
	settings activities.Survey // without the nodes
	drain    activities.DrainSettings

	// What people do meanwhile.
	cancelAt          time.Duration // 0 = never
	nodeJoinsAt       time.Duration // a node of the start version joins; 0 = never
	operatorUncordons float64       // percent of Ebb's cordons that a person takes away
	updates           []operatorUpdate

	faultRates
}

// faultRates are probabilities in percent. All but the last are per attempt at an
// activity, and name a fault of faults_test.go.
type faultRates struct {
	transientRate, lostResponseRate, hangRate, slowRate, permanentRate, outageRate float64

	nodeFaultRate float64 // of what happens on nodes: a blocked drain, a script that fails, …
}

// operatorUpdate is an update that an operator sends.
type operatorUpdate struct {
	at   time.Duration
	name string
	node string
}

func (s *scenario) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s of nodes %v, count %d, strict %v, no capacity %v, hops %v, target %s; record %+v\n",
		s.kind, s.nodeNames, s.count, s.strict, s.noCapacity, s.hops, s.target, s.record)
	for _, n := range s.nodes {
		fmt.Fprintf(&b, "  %s %s %s recorded %q ready %v manual %v cordoned by %q machine down %v\n",
			n.Name, n.Role, n.Version, n.Recorded, n.Ready, n.Manual, s.cordonOwner[n.Name], s.machineDown[n.Name])
	}
	fmt.Fprintf(&b, "  scale %+v\n  upgrade %+v\n  drain %v every %v\n", s.settings.Scale, s.settings.Upgrade, s.drain.Timeout, s.drain.RetryInterval)
	fmt.Fprintf(&b, "  cancelled at %v, a node joins at %v, operator uncordons %v%%, updates %v\n", s.cancelAt, s.nodeJoinsAt, s.operatorUncordons, s.updates)
	fmt.Fprintf(&b, "  faults (%%): %+v", s.faultRates)
	return b.String()
}

// withoutDeadlines returns settings under which nothing runs out of time.
func (s *scenario) withoutDeadlines() activities.Survey {
	settings := s.settings
	settings.Scale.Timeout, settings.Upgrade.Timeout = 24*time.Hour, 0
	settings.Upgrade.NodeTimeout, settings.Upgrade.ReadyTimeout = time.Hour, time.Hour
	return settings
}
