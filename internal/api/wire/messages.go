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

// Readiness is the response to GET /readyz.
type Readiness struct {
	Status string `json:"status"` // "ok"
	// Endpoints are the clusters whose endpoints are served, as far as the caller may see
	// them; a caller without a token sees none.
	Endpoints []FollowedCluster `json:"endpoints,omitempty"`
}

// FollowedCluster is how a gateway stands with a cluster whose endpoints it serves.
type FollowedCluster struct {
	Cluster string `json:"cluster"`
	InStep  bool   `json:"inStep"` // everything is known, and no watch fails
	// LastEventSeconds is how long ago something was heard of it last: a change or, about
	// once a minute, that there is none; absent = nothing was yet.
	LastEventSeconds *int64         `json:"lastEventSeconds,omitempty"`
	Failing          []FailingWatch `json:"failing,omitempty"`
}

// FailingWatch is a resource of a cluster whose last list or watch was refused or not answered.
type FailingWatch struct {
	Resource string `json:"resource"` // "nodes"
	Error    string `json:"error"`
}

// Health is the response to GET /healthz.
type Health struct {
	Status string `json:"status"`
}
