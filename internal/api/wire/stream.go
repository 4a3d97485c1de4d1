package wire

import (
	"ebb/internal/ops"
)

// An event stream has one JSON object a line: an ops.Event, a StatusLine or, as the
// last one, an EndLine. Empty lines keep the connection alive.

// StatusLine is the present state of an operation; it replaces the previous one. Seq is
// that of the last event before it.
type StatusLine struct {
	Type      string        `json:"type"` // "status"
	Seq       string        `json:"seq"`
	Operation ops.Operation `json:"operation"`
}

// EndLine is the last line of a stream: of type LineEnd when the operation is over and
// all its events were sent, LineRetry when the server is cordoned and the client has to
// ask again with after=After. A stream without an EndLine was cut, and is resumed after
// its last event.
type EndLine struct {
	Type  string `json:"type"`
	After string `json:"after"`
}

// Types of a StatusLine, an EndLine and a WaitAnswer.
const (
	LineStatus  = "status"
	LineEnd     = "end"
	LineRetry   = "retry"
	LineTimeout = "timeout" // only of a WaitAnswer: the operation is not over
)
