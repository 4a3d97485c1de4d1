package wire

// ServerState is the state of a server.
type ServerState string

// The states in their order. Leaving comes only where somebody says beforehand that the
// server will be stopped. A server that was cordoned by POST /v1/lifecycle/cordon can be
// uncordoned again, one that has got a SIGTERM cannot.
const (
	Serving     ServerState = "Serving"
	Leaving     ServerState = "Leaving" // serves on, so that callers have time to go to another one
	Cordoned    ServerState = "Cordoned"
	Terminating ServerState = "Terminating"
)

// Lifecycle is the answer to GET /v1/lifecycle.
type Lifecycle struct {
	State   ServerState `json:"state"`
	Running int         `json:"running"` // requests in flight
	Streams int         `json:"streams"` // open event streams and waits
}
