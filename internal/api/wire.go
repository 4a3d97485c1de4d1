// Package api is the gateway's HTTP API, its server and its client side by side.
// The routes are listed in routes.go, the server's life in lifecycle.go, and when
// a call may be repeated in retry.go.
package api

import (
	"ebb/internal/forecast"
	"ebb/internal/ops"
)

// Headers beside the usual ones.
const (
	// HeaderKey makes a POST safe to repeat: of an operation it is its ID.
	HeaderKey = "Idempotency-Key"
	// HeaderRequest names a request in the logs of both sides.
	HeaderRequest = "X-Request-Id"
)

// Content types.
const (
	typeJSON    = "application/json"
	typeProblem = "application/problem+json"
	typeEvents  = "application/x-ndjson"
)

// Code tells a program what kind of problem a problem is.
type Code string

// Codes of problems.
const (
	CodeBadRequest      Code = "bad-request"     // 400: malformed, an unknown field, a value that makes no sense
	CodeUnauthenticated Code = "unauthenticated" // 401: no token, or one that is not valid (any more)
	CodeForbidden       Code = "forbidden"       // 403: not with this role, or not this cluster
	CodeUnknown         Code = "unknown"         // 404: no such route, operation or cluster
	CodeMethod          Code = "method"          // 405: not with this method
	CodeConflict        Code = "conflict"        // 409: the operation ID stands for another operation
	CodeNotNow          Code = "not-now"         // 409: the operation does not take that now
	CodeTooLarge        Code = "too-large"       // 413: the body
	CodeMediaType       Code = "media-type"      // 415: the body is not JSON
	CodeRate            Code = "rate"            // 429: too many requests
	CodeInternal        Code = "internal"        // 500: a fault of the gateway
	CodeEngine          Code = "engine"          // 502: the engine or a cluster has failed
	CodeDraining        Code = "draining"        // 503: this server goes away, its successor will answer
	CodeEngineAway      Code = "engine-away"     // 503: the engine does not answer
	CodeIssuerAway      Code = "issuer-away"     // 503: the issuer of OIDC tokens does not answer, so that one cannot be checked
)

// Problem is what every error is answered with (RFC 9457).
type Problem struct {
	Type     string       `json:"type"` // always about:blank: Code tells more than a link could
	Title    string       `json:"title"`
	Status   int          `json:"status"`
	Detail   string       `json:"detail,omitempty"`
	Instance string       `json:"instance,omitempty"` // the request's ID
	Code     Code         `json:"code"`
	Faults   []string     `json:"faults,omitempty"` // each thing that is wrong with a bad request
	Exists   *ops.Request `json:"exists,omitempty"` // of a conflict: what the ID stands for
}

// submission is the body of POST /v1/operations: a request without its ID, which
// is the Idempotency-Key, or is made by the server when there is none.
type submission struct {
	Kind    string   `json:"kind"` // drain, scale-down or upgrade
	Cluster string   `json:"cluster"`
	Nodes   []string `json:"nodes,omitempty"`
	Count   int      `json:"count,omitempty"`
	Strict  bool     `json:"strict,omitempty"`
	Target  string   `json:"target,omitempty"`
	Hops    []string `json:"hops,omitempty"`
}

// steering is the body of a POST that steers an operation; it may be left out
// where no node is named.
type steering struct {
	Node string `json:"node,omitempty"`
}

// steered answers it.
type steered struct {
	Operation string     `json:"operation"`
	Action    ops.Action `json:"action"`
	Node      string     `json:"node,omitempty"`
	Answer    string     `json:"answer"`
}

// State is what a server is doing.
type State string

// States, in order. A server that was cordoned by POST /v1/lifecycle/cordon may be
// uncordoned again; one that has got a SIGTERM may not.
const (
	Serving     State = "Serving"
	Cordoned    State = "Cordoned"
	Terminating State = "Terminating"
)

// lifecycle is the answer to GET /v1/lifecycle.
type lifecycle struct {
	State   State `json:"state"`
	Running int   `json:"running"` // requests that are waited for
	Streams int   `json:"streams"` // event streams and waits that are open
}

// A line of an event stream is an ops.Event, or a statusLine, or at last an endLine.

// statusLine is the operation as it is now. It is no event: the next one takes its
// place. Seq is that of the last event before it.
type statusLine struct {
	Type      string        `json:"type"` // "status"
	Seq       string        `json:"seq"`
	Operation ops.Operation `json:"operation"`
}

// endLine ends a stream: "end" when the operation is over and everything was told,
// "retry" when the server goes away and the rest is to be had with after=After.
// A stream that has none was cut, and is to be resumed like one with "retry".
type endLine struct {
	Type  string `json:"type"`
	After string `json:"after"`
}

// Types of an endLine, and of the answer to a wait.
const (
	lineEnd     = "end"
	lineRetry   = "retry"
	lineTimeout = "timeout" // of a wait: the operation goes on
)

// waitAnswer answers GET /v1/operations/{id}/wait: "end" when the operation is over,
// "timeout" when it is not, "retry" when the server goes away.
type waitAnswer struct {
	Type      string        `json:"type"`
	Operation ops.Operation `json:"operation"`
}

// operationList answers GET /v1/operations.
type operationList struct {
	Operations []ops.Operation `json:"operations"`
}

// clusterList answers GET /v1/clusters.
type clusterList struct {
	Clusters []forecast.Overview `json:"clusters"`
}

// health answers /healthz and /readyz.
type health struct {
	Status string `json:"status"`
}
