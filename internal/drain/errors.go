package drain

import (
	"errors"
	"fmt"
	"strings"

	"ebb/internal/operation"
)

// The causes of an *Error; errors.Is finds them.
var (
	// ErrTimeout: the deadline passed before the node was empty.
	ErrTimeout = errors.New("the time for the drain is over")
	// ErrUncordoned: the node is not cordoned, or not any more.
	ErrUncordoned = errors.New("the node is not cordoned")
	// ErrForbidden: there are pods whose eviction the settings do not allow. Nothing was
	// evicted, and another attempt with the same settings ends the same way.
	ErrForbidden = errors.New("pods that may not be evicted with these settings")
	// ErrRecreated: evicted pods are created again on the cordoned node, over and over.
	ErrRecreated = errors.New("evicted pods come back to the node")
)

// Error is an attempt that did not empty the node.
type Error struct {
	Node    string                 `json:"node"`
	Reason  string                 `json:"reason"`
	Blocked []operation.BlockedPod `json:"blocked,omitempty"` // every pod that was still there
	Output  string                 `json:"output,omitempty"`  // its last 2,000 characters
	Cause   error                  `json:"-"`                 // one of the errors above
}

// Error returns the node, the reason, every pod that was left and the end of the output.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "drain node %s: %s", e.Node, e.Reason)
	if len(e.Blocked) > 0 {
		fmt.Fprintf(&b, "; %d pods left:", len(e.Blocked))
		for _, p := range e.Blocked {
			fmt.Fprintf(&b, "\n  %s", p)
		}
	}
	if e.Output != "" {
		fmt.Fprintf(&b, "\nend of the output:\n%s", e.Output)
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Cause }
