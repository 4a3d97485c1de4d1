package randomised

import (
	"fmt"
	"slices"

	"ebb/internal/clusterstate"
	"ebb/internal/operation"
	"ebb/internal/version"
)

// invariantsAfter hold when an operation has ended.
var invariantsAfter = []struct {
	name, why string
	check     func(*operationRun) string // "" = it holds
}{
	// What has become of the cluster.
	{"lockReleased", "a cluster that nobody works on is free", lockReleased},
	{"noCordonLeft", "a node that Ebb leaves cordoned is lost capacity that nobody looks for", noCordonLeft},
	{"foreignCordonsKept", "a cordon that is not Ebb's is not Ebb's to take back", foreignCordonsKept},
	{"rightState", "the state says what may be done next, and a rollback goes back to where it came from", rightState},
	{"nothingRemovedUnlessFailed", "rolled back means that every node and machine is still there", nothingRemovedUnlessFailed},
	{"successIsComplete", "an operation that reports success has done all of it", successIsComplete},
	{"rightRetryAccepted", "a failed upgrade goes on with the same target or a newer patch of it, and with no other", rightRetryAccepted},

	// What its result, its error or its status says.
	{"errorTyped", "who waits for an operation tells refused, rolled back and failed apart by the type", errorTyped},
	{"messageSaysOutcome", "people read the message, programs the fields: they are told the same", messageSaysOutcome},
	{"firstErrorReported", "the first error is the cause, all others follow from it or hide it", firstErrorReported},
	{"noDrainGivenUpEarly", "a drain that fails is tried again, as often as the configuration says", noDrainGivenUpEarly},
	{"allFaultsReported", "a user mends all faults in one go", allFaultsReported},
	{"stateReported", "who reads the error need not look at the cluster", stateReported},
	{"heldLockReported", "a lock that stays blocks every other operation", heldLockReported},
	{"leftCordonReported", "somebody has to take back a cordon that Ebb could not", leftCordonReported},
	{"removalReported", "what was removed cannot be seen in the cluster any more", removalReported},
	{"progressReported", "a user sees how far an upgrade has come", progressReported},
	{"attachedISOReported", "a late detachment would take the ISO away from the retry", attachedISOReported},
	{"missingCapacityReported", "pods without room are an outage that the user has to know of", missingCapacityReported},
}

func lockReleased(r *operationRun) string {
	if r.m.record().Holder == r.operation && !r.activityFailed("Release", "") {
		return "the lock is still held"
	}
	return ""
}

// cordonsStay reports whether the operation is to leave its cordons: a drain that
// has drained.
func (r *operationRun) cordonsStay() bool {
	return r.kind == operation.KindDrain && (r.err == nil || r.outcome.Complete)
}

func noCordonLeft(r *operationRun) string {
	record := r.m.record()
	for _, n := range r.m.nodeList() {
		owner := r.m.nodes[n.Name].cordonOwner
		named := slices.Contains(clusterstate.Names(record.TakenOver), deadHolder) || record.Holder == deadHolder
		tookOver := slices.Contains(clusterstate.Names(r.m.takenOver), deadHolder) && r.succeeded[r.operation+"Claim"]
		switch {
		case owner == r.operation && n.Unfinished && !n.Ready: // it is left to the upgrade that is started again
		case owner == r.operation && !r.cordonsStay() && !r.activityFailed("Uncordon", n.Name) && !r.activityFailed("LeaveCordoned", n.Name):
			return n.Name + " is left cordoned"
		case owner == deadHolder && !named:
			return n.Name + " is left cordoned by a dead operation, which the Lease does not name"
		case owner == deadHolder && tookOver && !r.activityFailed("UncordonAll", ""):
			return n.Name + " is left cordoned by the dead operation whose place was taken"
		}
	}
	return ""
}

func foreignCordonsKept(r *operationRun) string {
	for _, n := range r.m.nodeList() {
		was := r.nodesBefore[n.Name]
		if was.Unschedulable && was.cordonOwner != deadHolder && !n.Unschedulable && !r.m.hasEvent(eventOperatorUncordoned, "", n.Name) {
			return fmt.Sprintf("%s was cordoned by %s and is not any more", n.Name, was.cordonOwner)
		}
	}
	return ""
}

func rightState(r *operationRun) string {
	got := r.m.record()
	switch {
	case got.Holder == r.operation:
		return "" // lockReleased looks at that
	case !r.claimed && got.State != r.before.State && got.Holder == "":
		return fmt.Sprintf("it never had the cluster, which went from %s to %s", r.before.State, got.State)
	case !r.claimed:
		return ""
	}
	want := r.recordWanted()
	if got.State != want.State || got.Target != want.Target || got.Version != want.Version {
		return fmt.Sprintf("state %s, target %q, version %q; want %s, %q, %q", got.State, got.Target, got.Version, want.State, want.Target, want.Version)
	}
	return ""
}

// recordWanted returns the state, the target and the version that an operation has
// to leave that has had the cluster.
func (r *operationRun) recordWanted() clusterstate.Record {
	want := r.before
	switch {
	case r.err == nil && r.kind == operation.KindUpgrade:
		want.State, want.Version = clusterstate.Running, r.m.s.target
	case r.betweenHops():
		want.State = clusterstate.Running
	case r.errorType == operation.TypeFailed:
		want.State = clusterstate.Alert
	}
	if hop := r.m.lastEvent(eventHopComplete, r.operation, ""); hop >= 0 && r.err != nil {
		want.Version = version.Version(r.m.events[hop].detail)
	}
	switch {
	case want.State == clusterstate.Running:
		want.Target = ""
	case r.kind == operation.KindUpgrade:
		want.Target = r.upgradingTo
	}
	return want
}

// betweenHops reports whether an upgrade has ended in a whole cluster: a hop is
// complete and recorded, and the next had touched no node. Whether it is recorded
// is not known when Advance, or the survey that follows it, did not end well.
func (r *operationRun) betweenHops() bool {
	u := r.outcome.Upgrade
	if u == nil || u.Reached == "" || u.Touched {
		return false
	}
	uncertain := r.cancelled || r.activityFailed("Advance", "") || r.activityFailed("Survey", "")
	return !uncertain || r.outcome.State == clusterstate.Running
}

func nothingRemovedUnlessFailed(r *operationRun) string {
	removed := slices.ContainsFunc(r.m.events, func(e event) bool {
		return e.operation == r.operation && slices.Contains([]eventKind{eventDeleted, eventDestroyed, eventReset}, e.kind)
	})
	if removed && r.err != nil && r.errorType != operation.TypeFailed {
		return "nodes were removed, and it ended " + r.errorType
	}
	if removed && r.kind != operation.KindScaleDown {
		return "nodes were removed by " + string(r.kind)
	}
	return ""
}

func successIsComplete(r *operationRun) string {
	if r.err != nil {
		return ""
	}
	switch r.kind {
	case operation.KindUpgrade:
		return r.upgradeComplete()
	case operation.KindScaleDown:
		return r.scaleDownComplete()
	case operation.KindDrain:
		for _, name := range r.m.s.nodeNames {
			if !r.m.hasEvent(eventDrained, r.operation, name) {
				return name + " was not drained"
			}
		}
	case operation.KindUncordon: // is not drawn
	}
	return ""
}

func (r *operationRun) scaleDownComplete() string {
	for name, n := range r.m.nodes {
		removed := slices.Contains(r.scaleDown.Removed, name)
		if was, known := r.nodesBefore[name]; known && !was.deleted && (removed != n.deleted || removed != r.m.destroyed[name]) {
			return fmt.Sprintf("%s: reported as removed %v, deleted %v, destroyed %v", name, removed, n.deleted, r.m.destroyed[name])
		}
	}
	if size := len(r.m.nodeList()); r.scaleDown.Size != size || !slices.Equal(r.scaleDown.Removed, r.scaleDown.Destroyed) {
		return fmt.Sprintf("the result is %+v, the cluster has %d nodes", r.scaleDown, size)
	}
	return ""
}

func (r *operationRun) upgradeComplete() string {
	reported := slices.Concat(r.upgrade.Upgraded, r.upgrade.Skipped)
	lastSurvey := r.m.lastEvent(eventSurveyed, r.operation, "")
	for _, n := range r.m.nodeList() {
		joined := r.m.lastEvent(eventJoined, "", n.Name)
		switch {
		case n.Manual, joined > lastSurvey:
		case n.Version != r.m.s.target:
			return fmt.Sprintf("%s is at %s", n.Name, n.Version)
		case !slices.Contains(reported, n.Name) && joined < 0 && r.skippedAt[n.Name].IsZero():
			return fmt.Sprintf("%s is missing in the result %v", n.Name, reported)
		}
	}
	return ""
}

func rightRetryAccepted(r *operationRun) string {
	record := r.m.record()
	if record.Holder != "" {
		return ""
	}
	for _, to := range []version.Version{r.m.s.target, defaultTarget, otherPatch} {
		if !slices.Contains(acceptableTargets, to) {
			continue
		}
		err := r.m.policyAccepts(to)
		if want := r.m.specAccepts(record, to); want != (err == nil) {
			return fmt.Sprintf("in %s with target %q and version %q, an upgrade to %s should be accepted: %v; it is: %v",
				record.State, record.Target, record.Version, to, want, err)
		}
	}
	return ""
}
