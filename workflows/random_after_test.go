package workflows

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"ebb/internal/clusterstate"
	"ebb/internal/plan"
)

// outcome is an operation that has ended, and the world around it.
type outcome struct {
	*engine
	kind     Kind
	before   clusterstate.Record // without its dead holder
	held     bool                // it has had the cluster
	aim      string              // of an upgrade: the hop or the target that it was last on its way to
	nodes    map[string]modelNode
	status   Status
	err      error
	endType  string // of its error: ErrRefused, ErrRolledBack, ErrFailed; of a cancelled one what it would have been
	canceled bool
	text     string // of its error
	scale    ScaleDownResult
	upgrade  UpgradeResult
}

// afterwards holds when an operation has ended.
var afterwards = []struct {
	name, why string
	check     func(*outcome) string
}{
	{"endsTyped", "who waits for an operation tells refused, rolled back and failed apart by the type", endsTyped},
	{"lockReleased", "a cluster that nobody works on is free", lockReleased},
	{"noCordonLeft", "a node that Ebb leaves cordoned is lost capacity that nobody looks for", noCordonLeft},
	{"foreignCordonsKept", "a cordon that is not Ebb's is not Ebb's to take back", foreignCordonsKept},
	{"stateAsSaid", "the state says what may be done next, and a rollback goes back to where it came from", stateAsSaid},
	{"firstErrorReported", "the first error is the cause, all others follow from it or hide it", firstErrorReported},
	{"allFaultsReported", "a user mends all faults in one go", allFaultsReported},
	{"nothingRemovedUnlessSaid", "rolled back means that every node and machine is still there", nothingRemovedUnlessSaid},
	{"doneIsDone", "an operation that reports success has done all of it", doneIsDone},
	{"reportIsTrue", "what was removed cannot be seen in the cluster any more", reportIsTrue},
	{"roomIsToldOf", "pods without room are an outage that the user has to know of", roomIsToldOf},
	{"retryAccepted", "a failed upgrade goes on with the same target, and with no other", retryAccepted},
}

func endsTyped(o *outcome) string {
	known := slices.Contains([]string{ErrRefused, ErrRolledBack, ErrFailed}, o.endType)
	if o.err != nil && (!known || o.text == "") {
		return fmt.Sprintf("it ended with type %q: %v", o.endType, o.err)
	}
	if o.canceled && o.cancelled.IsZero() {
		return "it ended as cancelled and nobody had cancelled it"
	}
	return ""
}

// gaveUp reports whether an activity failed for good, or was given up.
func (o *outcome) gaveUp(name, node string) bool {
	return slices.ContainsFunc(o.failed, func(f callFailure) bool { return f.name == name && f.node == node })
}

func lockReleased(o *outcome) string {
	switch holder := o.m.record().Holder; {
	case holder != o.operation:
		return ""
	case !o.gaveUp("Release", ""):
		return "the lock is still held"
	case !strings.Contains(o.text, "the lock could not be released") && !o.gaveUp("Claim", ""): // a claim that failed is not known to have got it
		return "the lock could not be released and the error does not say so: " + o.text
	}
	return ""
}

func noCordonLeft(o *outcome) string {
	for _, n := range o.m.planned() {
		switch by := o.m.nodes[n.Name].by; {
		case by == o.operation && o.kind == KindDrain && (o.err == nil || o.onlyTheLock()):
		case by == o.operation && !o.gaveUp("Uncordon", n.Name):
			return n.Name + " is left cordoned"
		case by == o.operation && !strings.Contains(o.text+o.detail(n.Name), "could not uncordon "+n.Name):
			return n.Name + " could not be uncordoned and the error does not say so: " + o.text
		case by == deadHolder && !slices.Contains(clusterstate.Names(o.m.record().TakenOver), deadHolder) && o.m.record().Holder != deadHolder:
			return n.Name + " is left cordoned by a dead operation, and that is not noted"
		case by == deadHolder && slices.Contains(clusterstate.Names(o.m.takenOver), deadHolder) && !o.gaveUp("UncordonAll", "") && o.did[o.operation+"Claim"]:
			return n.Name + " is left cordoned by the dead operation whose place was taken"
		}
	}
	return ""
}

// onlyTheLock reports whether all was done, and then the lock could not be released.
func (o *outcome) onlyTheLock() bool {
	return o.gaveUp("Release", "") && !strings.Contains(o.text, "cause: ")
}

// detail is what the status, which comes with the error, says of a node.
func (o *outcome) detail(node string) string {
	for _, n := range o.status.Nodes {
		if n.Node == node {
			return n.Detail
		}
	}
	return ""
}

func foreignCordonsKept(o *outcome) string {
	for _, n := range o.m.planned() {
		was := o.nodes[n.Name]
		if was.Unschedulable && was.by != deadHolder && !n.Unschedulable && !o.m.had(eOperator, "", n.Name) {
			return fmt.Sprintf("%s was cordoned by %s and is not any more", n.Name, was.by)
		}
	}
	return ""
}

func stateAsSaid(o *outcome) string {
	want := o.before
	switch {
	case o.m.record().Holder == o.operation:
		return "" // lockReleased has looked at that
	case !o.held:
		if r := o.m.record(); r.State != o.before.State && r.Holder == "" {
			return fmt.Sprintf("it never had the cluster, which went from %s to %s", o.before.State, r.State)
		}
		return ""
	case o.err == nil && o.kind == KindUpgrade:
		want.State, want.Version = clusterstate.Running, o.m.s.target
	case strings.Contains(o.text, "was not begun"): // a hop is complete, and the next was not begun
		want.State = clusterstate.Running
	case o.endType == ErrFailed:
		want.State = clusterstate.Alert
	}
	got := o.m.record()
	if hop := o.m.last(eAdvanced, o.operation, ""); hop >= 0 && o.err != nil {
		want.Version = o.m.log[hop].detail
	}
	switch {
	case want.State == clusterstate.Running:
		want.Target = ""
	case o.kind == KindUpgrade:
		want.Target = o.aim
	}
	if got.State != want.State || got.Target != want.Target || got.Version != want.Version {
		return fmt.Sprintf("state %s, target %q, version %q; want %s, %q, %q", got.State, got.Target, got.Version, want.State, want.Target, want.Version)
	}
	if o.err != nil && !o.onlyTheLock() && !strings.Contains(o.text, "the cluster is in state "+string(got.State)) && o.endType != ErrRefused {
		return fmt.Sprintf("the error does not say state %s: %s", got.State, o.text)
	}
	return ""
}

func nothingRemovedUnlessSaid(o *outcome) string {
	removed := o.m.had(eDeleted, o.operation, "") || o.m.had(eDestroyed, o.operation, "") || o.m.had(eReset, o.operation, "")
	if removed && o.err != nil && o.endType != ErrFailed {
		return "nodes were removed, and it ended " + o.endType
	}
	if removed && o.kind != KindScaleDown {
		return "nodes were removed by " + string(o.kind)
	}
	return ""
}

func doneIsDone(o *outcome) string {
	if o.err != nil {
		return ""
	}
	switch o.kind {
	case KindUpgrade:
		return o.upgradeIsDone()
	case KindScaleDown:
		for name, n := range o.m.nodes {
			named := slices.Contains(o.scale.Removed, name)
			if _, was := o.nodes[name]; was && !o.nodes[name].gone && (named != n.gone || named != o.m.destroyed[name]) {
				return fmt.Sprintf("%s: reported as removed %v, gone %v, destroyed %v", name, named, n.gone, o.m.destroyed[name])
			}
		}
		if o.scale.Size != len(o.m.planned()) || !slices.Equal(o.scale.Removed, o.scale.Destroyed) {
			return fmt.Sprintf("the result is %+v, the cluster has %d nodes", o.scale, len(o.m.planned()))
		}
	case KindDrain:
		for _, name := range o.m.s.names {
			if !o.m.had(eDrained, o.operation, name) {
				return name + " was not drained"
			}
		}
	}
	return ""
}

func (o *outcome) upgradeIsDone() string {
	listed := append(slices.Clone(o.upgrade.Upgraded), o.upgrade.Skipped...)
	for _, n := range o.m.planned() {
		joined := o.m.last(eJoined, "", n.Name)
		switch {
		case n.Manual:
		case joined >= 0 && o.m.log[joined].at.After(o.m.clock.Add(-apiRetryFor-time.Minute)): // after the last look
		case !plan.SameVersion(n.Version, o.m.s.target):
			return fmt.Sprintf("%s is at %s", n.Name, n.Version)
		case !slices.Contains(listed, n.Name) && joined < 0 && o.skipped[n.Name].IsZero():
			return fmt.Sprintf("%s is missing in the result %v", n.Name, listed)
		}
	}
	return ""
}

func reportIsTrue(o *outcome) string {
	if o.kind != KindScaleDown || o.endType != ErrFailed || o.onlyTheLock() {
		return ""
	}
	var removed, destroyed []string
	for _, e := range o.m.log {
		switch {
		case e.op != o.operation:
		case e.what == eDeleted:
			removed = append(removed, e.node)
		case e.what == eDestroyed:
			destroyed = append(destroyed, e.node)
		}
	}
	for _, f := range o.failed { // it was done, but no answer came for as long as Ebb waits
		if f.name == "DeleteNode" && o.m.nodes[f.node].gone || f.name == "DestroyMachine" && o.m.destroyed[f.node] {
			return ""
		}
	}
	want := fmt.Sprintf("removed %s, destroyed %s, still in the cluster ", names(removed), names(destroyed))
	if !strings.Contains(o.text, want) || !strings.Contains(o.text, fmt.Sprintf("the cluster has %d nodes", len(o.m.planned()))) {
		return fmt.Sprintf("%q, and %d nodes, is not in %q", want, len(o.m.planned()), o.text)
	}
	return ""
}

// roomIsToldOf looks at scale-downs that went through.
func roomIsToldOf(o *outcome) string {
	if o.kind != KindScaleDown || o.err != nil || !o.m.s.crowded || o.m.calm {
		return ""
	}
	if o.status.Warning != noRoom {
		return fmt.Sprintf("the warning is %q", o.status.Warning)
	}
	return ""
}

func retryAccepted(o *outcome) string {
	record := o.m.record()
	if record.Holder != "" {
		return ""
	}
	for _, version := range []string{o.m.s.target, target, otherTarget} {
		if !slices.Contains([]string{target, otherTarget, farTarget}, version) {
			continue
		}
		err := o.m.wouldAccept(version)
		if want := o.m.shouldAccept(record, version); want != (err == nil) {
			return fmt.Sprintf("in %s with target %q and version %q, an upgrade to %s should be accepted: %v; it is: %v",
				record.State, record.Target, record.Version, version, want, err)
		}
	}
	return ""
}
