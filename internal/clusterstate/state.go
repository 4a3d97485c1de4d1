// Package clusterstate keeps a cluster's lock and state in the cluster itself,
// on the Lease ebb-system/cluster. Every change is compare-and-set: the state
// that was read is part of the write, so two operations cannot both have the
// cluster, whichever engine or worker they run on.
package clusterstate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// State is what a cluster is doing.
type State string

// States of a cluster.
const (
	Running    State = "Running"
	Scaling    State = "Scaling"
	Upgrading  State = "Upgrading"
	Draining   State = "Draining"
	Alert      State = "Alert"
	Recovering State = "Recovering"
)

// Where the lock lives, and the annotations on it.
const (
	Namespace = "ebb-system"
	LeaseName = "cluster"

	// CordonedBy is the annotation of a node that an operation has cordoned; its value
	// is the operation's ID.
	CordonedBy = "ebb/cordoned-by"

	annotationState   = "ebb/state"
	annotationFrom    = "ebb/previous-state" // the state a rollback goes back to
	annotationTarget  = "ebb/upgrade-target"
	annotationVersion = "ebb/cluster-version" // written when an upgrade is complete
	annotationMessage = "ebb/message"
	annotationEngine  = "ebb/engine"

	annotationTakenOver = "ebb/taken-over"     // dead holders that are not cleaned up after yet
	annotationLast      = "ebb/last-operation" // the operation that gave the cluster back last
)

// Record is what the Lease says of a cluster. A cluster without a Lease is
// Running and has no holder.
type Record struct {
	State   State  `json:"state"`
	Holder  string `json:"holder,omitempty"` // operation ID; empty = free
	From    State  `json:"from,omitempty"`   // while held: the state it was taken from
	Target  string `json:"target,omitempty"` // of an upgrade that is running or failed
	Version string `json:"version,omitempty"`
	Message string `json:"message,omitempty"` // why the cluster is in this state
	Engine  string `json:"engine,omitempty"`  // the Temporal cluster and namespace that run the holder

	// TakenOver names the dead operations whose place was taken and whose cordons
	// are not all taken back yet, separated by commas. Cleaned takes them out.
	TakenOver string `json:"takenOver,omitempty"`
	Last      string `json:"last,omitempty"` // the operation that gave the cluster back last
}

// transitions lists the states each state may be left to.
var transitions = map[State][]State{
	Running:    {Scaling, Upgrading, Draining},
	Scaling:    {Running, Alert},
	Upgrading:  {Running, Alert},
	Draining:   {Running, Alert},
	Alert:      {Upgrading, Scaling, Draining, Recovering},
	Recovering: {Running, Alert},
}

// CheckTransition is an error when a cluster cannot go from one state to the other.
func CheckTransition(from, to State) error {
	if !slices.Contains(transitions[from], to) {
		return fmt.Errorf("a cluster cannot go from %s to %s", from, to)
	}
	return nil
}

// interrupted is the state of a cluster whose holder died in the middle: what a
// drain leaves is whole, what a scale-down or an upgrade leaves may not be.
func interrupted(r Record) State {
	if r.State == Draining {
		return r.From
	}
	return Alert
}

// joinNames adds a name to a list of names, once.
func joinNames(list, name string) string {
	if list == "" || slices.Contains(Names(list), name) {
		return cmp.Or(list, name)
	}
	return list + "," + name
}

// withoutNames is a list of names less those of another one.
func withoutNames(list, less string) string {
	gone := Names(less)
	return strings.Join(slices.DeleteFunc(Names(list), func(name string) bool { return slices.Contains(gone, name) }), ",")
}

// Names are the operations in Record.TakenOver.
func Names(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}
