package ops

import "time"

// Event is something that has happened in an operation. It is read from the
// histories of the operation and of the workflows of its nodes, so that everybody
// who asks is told the same, whoever was there when it happened.
type Event struct {
	// Seq is the place of the event in the operation. It is opaque; given as
	// EventFilter.After it leads to the event that follows.
	Seq     string    `json:"seq"`
	Type    EventType `json:"type"`
	Time    time.Time `json:"time"` // when it came into the history
	Node    string    `json:"node,omitempty"`
	Phase   string    `json:"phase,omitempty"`   // of a line
	Hop     int       `json:"hop,omitempty"`     // of an upgrade in hops, from 0
	Attempt int       `json:"attempt,omitempty"` // 1 is the first
	Text    string    `json:"text"`              // of a line, without its end; others may have several
	State   State     `json:"state,omitempty"`   // of a state event
}

// EventType tells what kind of thing has happened.
type EventType string

// Types of events.
const (
	StateEvent    EventType = "state"    // it has started, was paused, was asked to end, is over
	ProgressEvent EventType = "progress" // a step began, failed and is tried again, or failed
	LogEvent      EventType = "log"      // a script has printed a line on a node
)

// EventTypes lists them.
var EventTypes = []EventType{StateEvent, ProgressEvent, LogEvent}

// EventFilter chooses events; its zero value chooses all there are now.
type EventFilter struct {
	After  string      // only those after this place; empty = from the start
	Types  []EventType // only these; empty = all
	Node   string      // only those of this node; empty = all
	Tail   int         // of those there are already only the last so many; 0 = all. Not with After
	Follow bool        // go on with what comes, until the operation is over
}

// Steering is a way to steer a running operation.
type Steering struct {
	Action Action `json:"action"`
	Node   string `json:"node,omitempty"` // for skip-node; for retry-now, empty = wherever one is waited for
	Key    string `json:"-"`              // makes a repetition harmless; empty = each is a new one
}
