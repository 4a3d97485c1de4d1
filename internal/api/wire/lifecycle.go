package wire

// ServerState is the state of a server.
type ServerState string

// The states in their order. A server that was cordoned by POST /v1/lifecycle/cordon
// can be uncordoned again, one that has got a SIGTERM cannot.
const (
	Serving     ServerState = "Serving"
	Cordoned    ServerState = "Cordoned"
	Terminating ServerState = "Terminating"
)

// Lifecycle is the answer to GET /v1/lifecycle.
type Lifecycle struct {
	State   ServerState `json:"state"`
	Running int         `json:"running"` // requests in flight
	Streams int         `json:"streams"` // open event streams and waits
}
