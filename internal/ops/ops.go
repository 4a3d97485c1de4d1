// Package ops is how commands talk to operations: start, look, list, follow,
// steer and cancel. Client is the one interface; Temporal implements it over a Temporal
// client.
package ops

import (
	"context"
	"encoding/json"
	"time"

	"ebb/internal/operation"
)

// Client starts and follows operations.
type Client interface {
	// Start starts an operation. Starting one with an ID that exists returns that
	// one and started = false; if it was asked for something else the error is a
	// *ConflictError. A request that makes no sense is a *RequestError.
	Start(ctx context.Context, r Request) (op Operation, started bool, err error)
	// Get is one operation as it is now. The error of an unknown ID is an *UnknownError.
	Get(ctx context.Context, id string) (Operation, error)
	// List lists operations, the newest first, without their nodes.
	List(ctx context.Context, f Filter) ([]Operation, error)
	// Cancel asks an operation to take back what it did and to end. It returns
	// when the request is recorded; cancelling one that is over changes nothing.
	Cancel(ctx context.Context, id string) error
	// Steer has a running operation pause, resume, leave a node out, or make the
	// next attempt now, and returns what it did. An action that makes no sense now
	// is a *NotNowError. With a key it is done once, however often it is asked for.
	Steer(ctx context.Context, id string, s Steering) (said string, err error)
	// Events calls each with what has happened in an operation, in order: no event
	// is left out, none comes twice. An error of each ends it and is returned. A
	// place in f that is none is a *RequestError. It rides out an engine that is away.
	Events(ctx context.Context, id string, f EventFilter, each func(Event) error) error
	// Watch calls changed with the operation as it is now, and again on each
	// change, until it is over or ctx ends; the last call has the outcome. It
	// rides out an engine that is away.
	Watch(ctx context.Context, id string, changed func(Operation)) error
}

// State is what an operation is doing, or how it ended.
type State string

// States of an operation.
const (
	Running    State = "Running"
	Done       State = "Done"
	Failed     State = "Failed"     // the cluster needs attention
	Refused    State = "Refused"    // nothing was touched
	RolledBack State = "RolledBack" // what was done was taken back
	Cancelled  State = "Cancelled"
	Terminated State = "Terminated" // ended from outside, nothing was taken back
	TimedOut   State = "TimedOut"
)

// Over reports whether the operation has ended.
func (s State) Over() bool { return s != Running }

// Operation is one operation as it is now.
type Operation struct {
	Request
	State      State             `json:"state"`
	Cancelling bool              `json:"cancelling,omitempty"` // a running one was asked to end
	RolledBack bool              `json:"rolledBack,omitempty"` // a cancelled one left the cluster as it was
	Message    string            `json:"message,omitempty"`    // how it ended
	Notice     string            `json:"notice,omitempty"`     // what keeps it from going on now
	Started    time.Time         `json:"started"`
	Ended      time.Time         `json:"ended,omitzero"`
	Status     *operation.Status `json:"status,omitempty"` // what it says of itself; nil when no worker could tell
	Live       map[string]Live   `json:"live,omitempty"`   // by node: what happens there now
	Result     json.RawMessage   `json:"result,omitempty"` // of one that is done

	Outcome *operation.Outcome `json:"outcome,omitempty"` // how one that did not go through left the cluster
}

// Live is what the activity that runs at a node said last.
type Live struct {
	Drain   *operation.DrainProgress `json:"drain,omitempty"`
	Output  string                   `json:"output,omitempty"`  // end of the script's output, at most 2,000 bytes
	Trouble string                   `json:"trouble,omitempty"` // why the activity is being tried again
}

// Filter chooses operations; its zero value chooses all.
type Filter struct {
	Cluster string
	Kind    operation.Kind
	Open    bool // only those that are not over
	Limit   int  // at most so many; 0 = 100
}
