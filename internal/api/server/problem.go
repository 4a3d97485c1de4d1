package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.temporal.io/api/serviceerror"
	"google.golang.org/grpc/codes"

	"ebb/internal/api/wire"
	"ebb/internal/forecast"
	"ebb/internal/ops"
)

// Values of Retry-After; they must be whole seconds.
const (
	retryAfterDraining   = time.Second     // another gateway is there, or soon will be
	retryAfterDependency = 5 * time.Second // the engine or the OIDC issuer has to recover
)

// errGraceEnded is the cause of the cancellation of requests that are still in flight
// when the grace period ends. They can be sent again.
var errGraceEnded = errors.New("this server stops, and the request was not done when its grace ended")

// statusClientClosedRequest is logged if the client has gone before the response; nginx
// uses the same number.
const statusClientClosedRequest = 499

// httpError is an error with the response that it is sent as.
type httpError struct {
	wire.Problem
	retryAfter time.Duration // Retry-After; 0 = none
	challenge  string        // WWW-Authenticate of a 401
	allow      []string      // Allow of a 405
}

func (f *httpError) Error() string { return f.Detail }

func newHTTPError(status int, code wire.Code, format string, args ...any) *httpError {
	return &httpError{Problem: wire.Problem{Status: status, Code: code, Detail: fmt.Sprintf(format, args...)}}
}

// withRetryAfter sets the Retry-After of the response.
func (f *httpError) withRetryAfter(d time.Duration) *httpError {
	f.retryAfter = d
	return f
}

// errorDraining returns the 503 of a cordoned server.
func errorDraining() *httpError {
	return newHTTPError(http.StatusServiceUnavailable, wire.CodeDraining,
		"this server is being replaced and takes nothing new: send the request again, its successor will answer").withRetryAfter(retryAfterDraining)
}

// httpErrorFrom returns the response for an error of a handler. If ctx, the context of
// the request, has ended, that is the reason, whatever the error is.
func httpErrorFrom(ctx context.Context, err error) *httpError {
	var (
		known          *httpError
		bad            *ops.RequestError
		unknown        *ops.UnknownError
		unknownCluster *forecast.UnknownClusterError
		conflict       *ops.ConflictError
		notNow         *ops.NotNowError
	)
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(context.Cause(ctx), errGraceEnded):
		return newHTTPError(http.StatusServiceUnavailable, wire.CodeDraining, "%v: send it again, the successor of this server will answer", errGraceEnded).withRetryAfter(retryAfterDraining)
	case ctx.Err() != nil:
		return newHTTPError(statusClientClosedRequest, wire.CodeInternal, "the caller went away")
	case errors.As(err, &bad):
		f := newHTTPError(http.StatusBadRequest, wire.CodeBadRequest, "%v", bad)
		f.Faults = bad.Faults
		return f
	case errors.As(err, &unknown):
		return errorUnknownOperation(unknown.ID)
	case errors.As(err, &unknownCluster):
		return newHTTPError(http.StatusNotFound, wire.CodeUnknown, "%v", unknownCluster)
	case errors.As(err, &conflict):
		f := newHTTPError(http.StatusConflict, wire.CodeConflict, "%v", conflict)
		f.Exists = &conflict.Exists
		return f
	case errors.As(err, &notNow):
		return newHTTPError(http.StatusConflict, wire.CodeNotNow, "%v", notNow)
	case engineUnavailable(err):
		return newHTTPError(http.StatusServiceUnavailable, wire.CodeEngineAway, "the engine does not answer now: %v", err).withRetryAfter(retryAfterDependency)
	}
	return newHTTPError(http.StatusBadGateway, wire.CodeEngine, "%v", err)
}

// errorUnknownOperation returns a 404. It is the same for an operation that does not
// exist and for one that the caller may not view, so that IDs cannot be probed.
func errorUnknownOperation(id string) *httpError {
	return newHTTPError(http.StatusNotFound, wire.CodeUnknown, "there is no operation %q here, or it is none of yours: `ebb list` shows those that you may see", wire.Truncate(id))
}

// engineUnavailable reports whether an error of the engine may be gone with the next
// call.
func engineUnavailable(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return true // of a single call: the context of the request has not ended
	}
	var coded serviceerror.ServiceError
	if !errors.As(err, &coded) {
		return false
	}
	switch coded.Status().Code() {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Aborted, codes.ResourceExhausted:
		return true
	default:
		return false
	}
}

// write sends the response. instance is the request ID.
func (f *httpError) write(w http.ResponseWriter, instance string) {
	if f.Status == statusClientClosedRequest {
		w.WriteHeader(statusClientClosedRequest)
		return
	}
	p := f.Problem
	p.Type, p.Title, p.Instance = "about:blank", http.StatusText(p.Status), instance
	if f.retryAfter > 0 {
		setRetryAfter(w.Header(), f.retryAfter)
	}
	if f.challenge != "" {
		w.Header().Set("WWW-Authenticate", f.challenge)
	}
	if len(f.allow) > 0 {
		w.Header().Set("Allow", strings.Join(f.allow, ", "))
	}
	w.Header().Set("Content-Type", wire.ContentTypeProblem)
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // if it fails, the client is gone
}

func setRetryAfter(h http.Header, d time.Duration) {
	h.Set("Retry-After", strconv.Itoa(int(d.Seconds())))
}
