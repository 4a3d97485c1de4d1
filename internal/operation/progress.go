package operation

import "fmt"

// Activities whose heartbeat says how far they are.
const (
	ActivityDrain     = "Drain"     // heartbeat: DrainProgress
	ActivityRunScript = "RunScript" // heartbeat: ScriptProgress
)

// DrainProgress is where an attempt to drain a node stands.
type DrainProgress struct {
	Node    string       `json:"node"`
	Total   int          `json:"total"`   // pods that have to leave, those that have left included
	Evicted int          `json:"evicted"` // evictions that the API server accepted
	Gone    int          `json:"gone"`    // pods that have ended, or are not waited for
	Waiting int          `json:"waiting"` // pods that have not
	Blocked []BlockedPod `json:"blocked,omitempty"`
	Output  string       `json:"output,omitempty"` // its last 2,000 characters
}

// BlockedPod is a pod that does not leave, and why.
type BlockedPod struct {
	Pod    string `json:"pod"` // namespace/name
	Reason string `json:"reason"`
	Budget string `json:"budget,omitempty"` // namespace/name of the budget that forbids it, several joined by ", "
	Advice string `json:"advice,omitempty"` // what to change when waiting cannot help
	Queued bool   `json:"queued,omitempty"` // it only waits for its turn: the budget allows evictions, and so many are under way
}

// String returns the pod, the reason and the advice on one line.
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

// ScriptProgress is the heartbeat of a running script.
type ScriptProgress struct {
	Node   string `json:"node"`
	Offset int64  `json:"offset"` // bytes of output that are in the operation's log
	Output string `json:"output"` // the last 2,000 bytes of it
}

// SignalOutput carries the output of a script into the history of the workflow
// that runs it: that is the operation's log. Nobody handles it there; whoever
// reads the log reads the history.
const SignalOutput = "output"

// Output is a piece of a script's output. A piece that was sent twice, because
// its worker died in between, has the same offset twice.
type Output struct {
	Node    string `json:"node"`
	Phase   string `json:"phase"`
	Hop     int    `json:"hop,omitempty"`
	Attempt int    `json:"attempt"`
	Offset  int64  `json:"offset"` // of the piece in the output, in bytes
	Size    int64  `json:"size"`   // of the piece, in bytes; Text may differ where it is no UTF-8
	Text    string `json:"text"`
}

// DrainLeft is the part of the result of ActivityDrain that says what the drain has left on
// its node although it is done.
type DrainLeft struct {
	Node     string   `json:"node"`
	Skipped  []string `json:"skipped,omitempty"`  // pods that were not waited for, namespace/name
	Warnings []string `json:"warnings,omitempty"` // volumes that are still attached, pods that have come back
}

// namedPods is how many pods are named where there may be many.
const namedPods = 10

// Texts returns it as people are told.
func (l DrainLeft) Texts() (texts []string) {
	for _, w := range l.Warnings {
		texts = append(texts, "node "+l.Node+": "+w)
	}
	if n := len(l.Skipped); n > 0 {
		shown := names(l.Skipped[:min(n, namedPods)])
		if n > namedPods {
			shown += fmt.Sprintf(" and %d more", n-namedPods)
		}
		texts = append(texts, fmt.Sprintf("node %s: %d pods were still terminating and not waited for: %s", l.Node, n, shown))
	}
	return texts
}
