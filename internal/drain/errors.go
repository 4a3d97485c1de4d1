package drain

import (
	"errors"
	"fmt"
	"strings"
)

// What ended an attempt; each is in the chain of an *Error.
var (
	// ErrTimeout: the deadline passed before the node was empty.
	ErrTimeout = errors.New("the time for the drain is over")
	// ErrUncordoned: the node is not cordoned, or not any more.
	ErrUncordoned = errors.New("the node is not cordoned")
	// ErrRefused: there are pods that the settings forbid to evict. Nothing was
	// evicted, and another attempt with the same settings ends the same way.
	ErrRefused = errors.New("pods that may not be evicted with these settings")
	// ErrReturning: pods keep coming back to the cordoned node.
	ErrReturning = errors.New("evicted pods come back to the node")
)

// Error is an attempt that did not empty the node.
type Error struct {
	Node    string       `json:"node"`
	Reason  string       `json:"reason"`
	Blocked []BlockedPod `json:"blocked,omitempty"` // every pod that was still there
	Output  string       `json:"output,omitempty"`  // its last 2,000 characters
	Cause   error        `json:"-"`                 // one of the errors above
}

// Error names the node, the reason, every pod that was left and the end of the output.
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

// String is the pod, the reason and the advice on one line.
func (p BlockedPod) String() string {
	s := p.Pod + ": " + p.Reason
	if p.Budget != "" {
		s = p.Pod + " blocked by budget " + p.Budget + ": " + p.Reason
	}
	if p.Advice != "" {
		s += " (" + p.Advice + ")"
	}
	return s
}
