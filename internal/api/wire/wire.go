// Package wire has what the server and the client of the gateway's HTTP API share:
// headers, JSON bodies, problem documents and the lines of event streams. The whole
// API is described in openapi.yaml beside the server.
package wire

// Headers that net/http does not know.
const (
	// HeaderIdempotencyKey makes a POST safe to repeat. For POST /v1/operations it is
	// the ID of the operation.
	HeaderIdempotencyKey = "Idempotency-Key"
	// HeaderRequestID identifies a request in the logs of both sides.
	HeaderRequestID = "X-Request-Id"
)

// Content types.
const (
	ContentTypeJSON    = "application/json"
	ContentTypeProblem = "application/problem+json"
	ContentTypeEvents  = "application/x-ndjson"
)

// Truncate returns text that the other side has sent, cut to 64 characters for use in a
// message.
func Truncate(text string) string {
	const most = 64
	if r := []rune(text); len(r) > most {
		return string(r[:most]) + "…"
	}
	return text
}
