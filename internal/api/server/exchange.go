package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"time"

	"ebb/internal/api/auth"
	"ebb/internal/api/wire"
)

// writeTimeout is the deadline for a client to accept each piece of a response.
const writeTimeout = 30 * time.Second

// exchange is an HTTP request and the response to it, with what the middleware has
// found out about the request.
type exchange struct {
	w             *responseRecorder
	r             *http.Request
	id            string // X-Request-Id
	startedAt     time.Time
	route         *route
	body          *requestBody // without the limit of its size
	leave         func()       // tells the lifecycle that the request is done
	releaseStream func()       // gives back a stream or wait

	cordoned  context.Context // ends when the server is cordoned
	principal *auth.Principal // nil before authentication
	operation string          // the ID of the operation that the request is about
	cluster   string          // its name
	code      wire.Code       // of the error response
}

// requestIDPattern matches request IDs of clients that are safe in headers and logs.
var requestIDPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// newExchange returns the exchange of a request, with the request ID of the client or a
// new one.
func newExchange(w http.ResponseWriter, r *http.Request) *exchange {
	x := &exchange{w: &responseRecorder{ResponseWriter: w}, r: r, id: r.Header.Get(wire.HeaderRequestID), startedAt: time.Now(), leave: func() {}, releaseStream: func() {}}
	x.body = newRequestBody(r)
	x.w.beforeHeader = x.abandonBody
	if !requestIDPattern.MatchString(x.id) {
		var made [8]byte
		_, _ = rand.Read(made[:]) // never fails; an ID of zeros would do no harm
		x.id = hex.EncodeToString(made[:])
	}
	w.Header().Set(wire.HeaderRequestID, x.id)
	return x
}

func (x *exchange) ctx() context.Context { return x.r.Context() }

// respondError sends the problem document of an error. If the response has begun, it
// cuts the connection instead, so that the client does not take the response for
// complete.
func (x *exchange) respondError(err error) {
	f := httpErrorFrom(x.ctx(), err)
	x.code = f.Code
	if x.w.status != 0 {
		panic(http.ErrAbortHandler)
	}
	if f.Code == wire.CodeDraining && x.route.mutates() && errors.Is(context.Cause(x.ctx()), errGraceEnded) && x.r.Header.Get(wire.HeaderIdempotencyKey) == "" {
		f.Detail += "; it had no " + wire.HeaderIdempotencyKey + ": look first whether it was done"
	}
	x.extendWriteDeadline()
	f.write(x.w, x.id)
}

// respondJSON sends a successful response.
func (x *exchange) respondJSON(status int, body any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return newHTTPError(http.StatusInternalServerError, wire.CodeInternal, "write the answer: %v", err)
	}
	x.extendWriteDeadline()
	x.w.Header().Set("Content-Type", wire.ContentTypeJSON)
	x.w.WriteHeader(status)
	_, _ = x.w.Write(append(data, '\n')) // if it fails, the client is gone
	return nil
}

// extendWriteDeadline gives the client writeTimeout to accept what is written next.
// Writers without deadlines (in tests) are left alone.
func (x *exchange) extendWriteDeadline() {
	_ = http.NewResponseController(x.w).SetWriteDeadline(time.Now().Add(writeTimeout))
}

// requireRole returns a 403 unless the principal has at least a role on a cluster. The
// error does not disclose whether the cluster exists.
func (x *exchange) requireRole(least auth.Role, cluster string) error {
	x.cluster = cluster
	if x.principal.May(least, cluster) {
		return nil
	}
	return errorForbidden(x.principal, least, cluster)
}

// errorForbidden returns a 403.
func errorForbidden(p *auth.Principal, least auth.Role, cluster string) *httpError {
	return newHTTPError(http.StatusForbidden, wire.CodeForbidden, "%s does not have the role %s on cluster %q", p.Name, least, wire.Truncate(cluster))
}

// responseRecorder records the status and the size of a response.
type responseRecorder struct {
	http.ResponseWriter
	status       int
	bytes        int64
	beforeHeader func() // called once
}

// WriteHeader implements http.ResponseWriter.
func (w *responseRecorder) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
		w.beforeHeader()
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *responseRecorder) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// Unwrap is called by http.ResponseController.
func (w *responseRecorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }
