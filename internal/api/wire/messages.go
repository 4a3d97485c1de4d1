package wire

import (
	"ebb/internal/forecast"
	"ebb/internal/ops"
)

// Submission is the body of POST /v1/operations. The operation's ID is the
// Idempotency-Key; without one the server makes an ID.
type Submission struct {
	Kind    string   `json:"kind"` // drain, scale-down or upgrade
	Cluster string   `json:"cluster"`
	Nodes   []string `json:"nodes,omitempty"`
	Count   int      `json:"count,omitempty"`
	Strict  bool     `json:"strict,omitempty"`
	Target  string   `json:"target,omitempty"`
	Hops    []string `json:"hops,omitempty"`
}

// Steering is the body of a POST that steers an operation. It is optional where no node
// is named.
type Steering struct {
	Node string `json:"node,omitempty"`
}

// Steered is the response to a Steering.
type Steered struct {
	Operation string     `json:"operation"`
	Action    ops.Action `json:"action"`
	Node      string     `json:"node,omitempty"`
	Answer    string     `json:"answer"`
}

// OperationList is the response to GET /v1/operations.
type OperationList struct {
	Operations []ops.Operation `json:"operations"`
}

// WaitAnswer is the response to GET /v1/operations/{id}/wait: of type LineEnd when the
// operation is over, LineTimeout when it is not, and LineRetry when the server is
// cordoned and the client has to ask again.
type WaitAnswer struct {
	Type      string        `json:"type"`
	Operation ops.Operation `json:"operation"`
}

// ClusterList is the response to GET /v1/clusters.
type ClusterList struct {
	Clusters []forecast.Overview `json:"clusters"`
}

// Health is the response to GET /healthz and GET /readyz.
type Health struct {
	Status string `json:"status"`
}
