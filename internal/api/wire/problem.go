package wire

import (
	"ebb/internal/ops"
)

// Code is the kind of a problem, for programs.
type Code string

// Codes and their HTTP status.
const (
	CodeBadRequest      Code = "bad-request"     // 400: malformed, an unknown field, a value that makes no sense
	CodeUnauthenticated Code = "unauthenticated" // 401: no token, or one that is not valid (any more)
	CodeForbidden       Code = "forbidden"       // 403: the role does not suffice, or not on this cluster
	CodeUnknown         Code = "unknown"         // 404: no such route, operation or cluster
	CodeMethod          Code = "method"          // 405: the route has other methods
	CodeConflict        Code = "conflict"        // 409: the operation ID stands for another operation
	CodeNotNow          Code = "not-now"         // 409: not possible in the present state
	CodeTooLarge        Code = "too-large"       // 413: the body is too large
	CodeMediaType       Code = "media-type"      // 415: the body is not JSON
	CodeRate            Code = "rate"            // 429: too many requests
	CodeInternal        Code = "internal"        // 500: a bug in the gateway
	CodeEngine          Code = "engine"          // 502: the engine or a cluster has failed
	CodeDraining        Code = "draining"        // 503: this server is cordoned; another one will answer
	CodeEngineAway      Code = "engine-away"     // 503: the engine does not answer
	CodeIssuerAway      Code = "issuer-away"     // 503: a token cannot be checked, as the OIDC issuer does not answer
)

// Problem is the body of every error response (RFC 9457).
type Problem struct {
	Type     string       `json:"type"` // always about:blank; see Code
	Title    string       `json:"title"`
	Status   int          `json:"status"`
	Detail   string       `json:"detail,omitempty"`
	Instance string       `json:"instance,omitempty"` // the request's ID
	Code     Code         `json:"code"`
	Faults   []string     `json:"faults,omitempty"` // of a bad request: everything that is wrong with it
	Exists   *ops.Request `json:"exists,omitempty"` // of a conflict: the operation that has the ID
}
