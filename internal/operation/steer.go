package operation

// Updates by which an operator steers a running operation. Each answers with what
// it did, in a sentence; one that makes no sense now is refused with the reason.
// Pause, resume, skip-node and give-up are for an operation, retry-now also for the
// workflow of one node of an upgrade.
const (
	UpdatePause    = "pause"     // start no further node
	UpdateResume   = "resume"    // go on
	UpdateSkipNode = "skip-node" // leave a worker out of an upgrade
	UpdateRetryNow = "retry-now" // do not wait for the next attempt
	UpdateGiveUp   = "give-up"   // of one that was cancelled: leave what cannot be put back now
)

// SignalGiveUp tells the workflow of one node of an upgrade what UpdateGiveUp tells its
// operation.
const SignalGiveUp = "give-up"

// NodeRequest is the argument of skip-node and retry-now.
type NodeRequest struct {
	Node string `json:"node,omitempty"` // for retry-now, empty = every node that waits
}
