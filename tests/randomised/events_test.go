package randomised

import (
	"fmt"
	"slices"
	"time"
)

// event is one thing that has happened to the modelled cluster.
type event struct {
	at              time.Time
	kind            eventKind
	operation, node string
	detail          string // what it is depends on the kind
}

// eventKind is what has happened.
type eventKind string

// Kinds of events, and what their detail is.
const (
	eventClaimed             eventKind = "claimed"  // dead operations whose place was taken
	eventReleased            eventKind = "released" // state
	eventSurveyed            eventKind = "surveyed"
	eventCordoned            eventKind = "cordoned"
	eventUncordoned          eventKind = "uncordoned"    // who had cordoned the node
	eventLeftCordoned        eventKind = "left cordoned" // its kubelet does not live
	eventOperatorUncordoned  eventKind = "operator uncordoned"
	eventDrainStarted        eventKind = "drain started"
	eventDrained             eventKind = "drained"
	eventDrainFailed         eventKind = "drain failed"         // why
	eventStaged              eventKind = "staged"               // exit code
	eventScriptStarted       eventKind = "upgrade script began" // version
	eventScriptEnded         eventKind = "upgrade script ended" // exit code
	eventReady               eventKind = "ready"
	eventReset               eventKind = "reset" // exit code
	eventDeleted             eventKind = "deleted"
	eventDestroyed           eventKind = "destroyed"
	eventRecorded            eventKind = "recorded" // version
	eventJoined              eventKind = "joined"
	eventHopComplete         eventKind = "hop complete" // version
	eventControlPlaneHealthy eventKind = "control plane is healthy"
	eventControlPlaneFaulty  eventKind = "control plane is faulty"
	eventEtcdHealthy         eventKind = "etcd is healthy"
	eventEtcdFaulty          eventKind = "etcd is faulty"
)

// mutations are the events by which an operation changes nodes.
var mutations = []eventKind{
	eventCordoned, eventUncordoned, eventDrainStarted, eventScriptStarted, eventReset, eventDeleted, eventDestroyed, eventRecorded,
}

// emit writes an event down and checks the invariants that hold at all times.
func (m *model) emit(kind eventKind, operation, node, detail string) {
	e := event{at: m.clock, kind: kind, operation: operation, node: node, detail: detail}
	m.events = append(m.events, e)
	for _, inv := range invariantsDuring {
		if problem := inv.check(m, e); problem != "" {
			m.violated(inv.name, problem, inv.why)
		}
	}
}

// violated writes down that an invariant does not hold.
func (m *model) violated(invariant, problem, why string) {
	m.violations = append(m.violations, fmt.Sprintf("%s: %s (%s)", invariant, problem, why))
}

// lastEvent returns the index of the newest event of a kind, or -1. An empty
// operation or node matches any.
func (m *model) lastEvent(kind eventKind, operation, node string) int {
	for i, e := range slices.Backward(m.events) {
		if e.kind == kind && (operation == "" || e.operation == operation) && (node == "" || e.node == node) {
			return i
		}
	}
	return -1
}

// hasEvent reports whether there was such an event.
func (m *model) hasEvent(kind eventKind, operation, node string) bool {
	return m.lastEvent(kind, operation, node) >= 0
}

// hasEventInHop reports whether the running operation had such an event since its
// last hop was complete.
func (m *model) hasEventInHop(kind eventKind, node string) bool {
	return m.lastEvent(kind, m.operation, node) > m.lastEvent(eventHopComplete, m.operation, "")
}

// countEvents returns how many such events there were.
func (m *model) countEvents(kind eventKind, operation, node string) (count int) {
	for _, e := range m.events {
		if e.kind == kind && e.operation == operation && e.node == node {
			count++
		}
	}
	return count
}
