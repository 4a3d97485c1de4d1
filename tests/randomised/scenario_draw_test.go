package randomised

import (
	"fmt"
	"time"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/operation"
	"ebb/internal/policy"
	"ebb/internal/version"
)

// drawScenario returns the scenario of a seed. A new draw takes a generator of its
// own (newRandom with a new name), which leaves all other draws of a seed as they
// are, and the regressions what they were.
func drawScenario(seed uint64) *scenario {
	rnd := newRandom(seed, "scenario")
	s := &scenario{seed: seed, machineDown: map[string]bool{}, cordonOwner: map[string]string{}}
	s.kind = draw(rnd, operation.KindUpgrade, operation.KindUpgrade, operation.KindUpgrade, operation.KindScaleDown, operation.KindScaleDown, operation.KindDrain)
	s.drawSettings(rnd)
	s.drawFaultRates(rnd)
	s.drawRecord(rnd)
	s.drawNodes(rnd)
	s.drawRequest(rnd)
	s.drawHops(newRandom(seed, "hops"))
	s.drawUpdates(newRandom(seed, "steering"))
	rnd = newRandom(seed, "capacity")
	s.strict, s.noCapacity = rnd.chance(30), rnd.chance(20)
	s.settings.Upgrade.ISO = newRandom(seed, "iso").chance(50)
	return s
}

func (s *scenario) drawSettings(rnd *random) {
	s.settings = activities.Survey{
		Scale: activities.ScaleSettings{
			Timeout: draw(rnd, time.Hour, time.Hour, 20*time.Minute, 5*time.Minute, 90*time.Second), Attempts: 1 + rnd.intn(3),
			MaxParallel: 1 + rnd.intn(3), MinWorkers: 1,
		},
		Upgrade: activities.UpgradeSettings{
			Retries: rnd.intn(4), NodeTimeout: draw(rnd, 30*time.Minute, 30*time.Minute, 10*time.Minute, 3*time.Minute),
			Timeout:      draw(rnd, 0, 0, 0, 2*time.Hour, 30*time.Minute, 5*time.Minute),
			ReadyTimeout: draw(rnd, 10*time.Minute, 2*time.Minute), SteadyInterval: time.Second, MaxUnavailable: 1 + rnd.intn(3),
		},
	}
	s.drain = activities.DrainSettings{Timeout: draw(rnd, 5*time.Minute, time.Minute), RetryInterval: draw(rnd, 30*time.Second, 5*time.Second)}
}

func (s *scenario) drawFaultRates(rnd *random) {
	rate := func(rates ...float64) float64 { return draw(rnd, rates...) }
	s.transientRate, s.lostResponseRate, s.hangRate, s.slowRate = rate(0, 3, 15, 40), rate(0, 2, 10), rate(0, 0, 2, 8), rate(0, 5, 20)
	s.permanentRate, s.outageRate, s.nodeFaultRate = rate(0, 0, 1, 3, 8), rate(0, 0, 0.5), rate(0, 1, 3, 10, 25)
	if rnd.chance(30) {
		s.cancelAt = rnd.between(time.Millisecond, draw(rnd, 2*time.Second, 30*time.Second, 5*time.Minute, time.Hour))
	}
	s.operatorUncordons = rate(0, 0, 0, 15)
	if rnd.chance(4) && s.kind == operation.KindUpgrade {
		s.nodeJoinsAt = rnd.between(time.Second, 20*time.Minute)
	}
}

// drawRecord draws what earlier operations have left on the Lease.
func (s *scenario) drawRecord(rnd *random) {
	r := clusterstate.Record{State: clusterstate.Running, Version: draw[version.Version](rnd, "", startVersion)}
	if rnd.chance(35) {
		r.State, r.Target = clusterstate.Alert, draw[version.Version](rnd, defaultTarget, defaultTarget, defaultTarget, defaultTarget, "", otherPatch)
	}
	if holder := draw(rnd, "", "", "", "", "", "", "", "", deadHolder, deadHolder, runningHolder); holder != "" {
		r.Holder, r.Engine, r.From = holder, "engine/default", r.State
		r.State = draw(rnd, clusterstate.Draining, clusterstate.Scaling, clusterstate.Upgrading)
		if r.State == clusterstate.Upgrading {
			r.Target = defaultTarget
		}
	}
	s.record = r
}

func (s *scenario) drawNodes(rnd *random) {
	workers, partlyUpgraded := rnd.intn(9), s.record.Target == defaultTarget || rnd.chance(15)
	for i := range draw(rnd, 1, 1, 2, 3, 3) + workers {
		s.nodes = append(s.nodes, s.drawNode(rnd, i, workers, partlyUpgraded))
	}
	s.nodes = policy.Sort(s.nodes)
}

func (s *scenario) drawNode(rnd *random, i, workers int, partlyUpgraded bool) policy.Node {
	n := policy.Node{Name: fmt.Sprintf("w%d", i+1), Role: policy.Worker, Version: startVersion, Ready: true}
	rare := 1.0
	if i >= workers {
		n.Name, n.Role, rare = fmt.Sprintf("cp%d", i-workers+1), policy.ControlPlane, 0.2
	}
	n.UID, n.MachineID, n.Created = "u-"+n.Name, "m-"+n.Name, epoch.Add(time.Duration(i)*time.Hour)
	n.Manual = n.Role == policy.Worker && rnd.chance(8)
	n.Ready = !rnd.chance(10 * rare)
	if partlyUpgraded && !n.Manual && rnd.chance(40) {
		n.Version, n.Recorded = defaultTarget, draw[version.Version](rnd, defaultTarget, defaultTarget, "")
	}
	if rnd.chance(15 * rare) {
		s.cordonOwner[n.Name] = draw(rnd, kubectl, earlierDrain)
	}
	if s.record.Holder == deadHolder && rnd.chance(30) {
		s.cordonOwner[n.Name] = deadHolder
	}
	n.Unschedulable = s.cordonOwner[n.Name] != ""
	if n.Unschedulable && s.cordonOwner[n.Name] != kubectl {
		n.CordonedBy = s.cordonOwner[n.Name]
	}
	s.machineDown[n.Name] = rnd.chance(5 * rare)
	n.Ready = n.Ready && !s.machineDown[n.Name]
	return n
}

// drawRequest draws what the operation is asked for; sometimes nonsense.
func (s *scenario) drawRequest(rnd *random) {
	s.target = defaultTarget
	if rnd.chance(3) {
		s.target = draw[version.Version](rnd, otherPatch, "1.38.0", startVersion, "latest")
	}
	for _, n := range s.nodes {
		if rnd.chance(30) && (n.Role == policy.Worker || rnd.chance(30)) {
			s.nodeNames = append(s.nodeNames, n.Name)
		}
	}
	if s.kind == operation.KindScaleDown && (rnd.chance(40) || len(s.nodeNames) == 0) {
		s.nodeNames, s.count = nil, 1+rnd.intn(3)
	}
	if len(s.nodeNames) > 0 && rnd.chance(3) {
		s.nodeNames = append(s.nodeNames, draw(rnd, s.nodeNames[0], "nobody"))
	}
}

// drawHops makes some upgrades go over a minor version.
func (s *scenario) drawHops(rnd *random) {
	if s.kind == operation.KindUpgrade && s.target == defaultTarget && rnd.chance(12) {
		s.hops, s.target = []version.Version{defaultTarget}, nextMinor
	}
}

// drawUpdates draws the updates that an operator sends. What is paused is resumed.
func (s *scenario) drawUpdates(rnd *random) {
	at := func() time.Duration {
		return rnd.between(time.Millisecond, draw(rnd, 5*time.Second, time.Minute, 10*time.Minute, time.Hour))
	}
	if rnd.chance(15) {
		pause := at()
		s.updates = append(s.updates, operatorUpdate{pause, operation.UpdatePause, ""}, operatorUpdate{pause + at(), operation.UpdateResume, ""})
	}
	for range 3 {
		node := s.nodes[rnd.intn(len(s.nodes))].Name
		if rnd.chance(8) {
			s.updates = append(s.updates, operatorUpdate{at(), operation.UpdateSkipNode, node})
		}
		if rnd.chance(8) {
			s.updates = append(s.updates, operatorUpdate{at(), operation.UpdateRetryNow, draw(rnd, node, "")})
		}
	}
}
