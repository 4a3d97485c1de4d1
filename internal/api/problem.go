package api

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

	"ebb/internal/forecast"
	"ebb/internal/ops"
)

// What Retry-After says, in whole seconds as HTTP has it.
const (
	retrySoon  = time.Second     // a successor, or another replica, is there at any moment
	retryLater = 5 * time.Second // something behind this server has to come back
)

// errDraining is the cause that ends a request which has outlasted the grace. What
// it was about is not lost, and it may be sent again.
var errDraining = errors.New("this server stops, and the request was not done when its grace ended")

// statusGone is logged for a caller that went away before it was answered. Nobody
// is told.
const statusGone = 499

// failure is an error that knows how it is answered.
type failure struct {
	Problem
	retry     time.Duration // Retry-After; 0 = none
	challenge string        // WWW-Authenticate of a 401
	allow     []string      // Allow of a 405
}

func (f *failure) Error() string { return f.Detail }

func fail(status int, code Code, format string, args ...any) *failure {
	return &failure{Problem: Problem{Status: status, Code: code, Detail: fmt.Sprintf(format, args...)}}
}

func (f *failure) after(d time.Duration) *failure {
	f.retry = d
	return f
}

func draining() *failure {
	return fail(http.StatusServiceUnavailable, CodeDraining,
		"this server is being replaced and takes nothing new: send the request again, its successor will answer").after(retrySoon)
}

// failureOf turns any error of a handler into its answer. ctx is the request's own:
// when it has ended, so has the interest in what the error says.
func failureOf(ctx context.Context, err error) *failure {
	var (
		known    *failure
		bad      *ops.RequestError
		unknown  *ops.UnknownError
		nowhere  *forecast.UnknownClusterError
		conflict *ops.ConflictError
		notNow   *ops.NotNowError
	)
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(context.Cause(ctx), errDraining):
		return fail(http.StatusServiceUnavailable, CodeDraining, "%v: send it again, the successor of this server will answer", errDraining).after(retrySoon)
	case ctx.Err() != nil:
		return fail(statusGone, CodeInternal, "the caller went away")
	case errors.As(err, &bad):
		f := fail(http.StatusBadRequest, CodeBadRequest, "%v", bad)
		f.Faults = bad.Faults
		return f
	case errors.As(err, &unknown):
		return unknownOperation(unknown.ID)
	case errors.As(err, &nowhere):
		return fail(http.StatusNotFound, CodeUnknown, "%v", nowhere)
	case errors.As(err, &conflict):
		f := fail(http.StatusConflict, CodeConflict, "%v", conflict)
		f.Exists = &conflict.Exists
		return f
	case errors.As(err, &notNow):
		return fail(http.StatusConflict, CodeNotNow, "%v", notNow)
	case away(err):
		return fail(http.StatusServiceUnavailable, CodeEngineAway, "the engine does not answer now: %v", err).after(retryLater)
	}
	return fail(http.StatusBadGateway, CodeEngine, "%v", err)
}

// unknownOperation answers alike for an operation that does not exist and for one
// that the caller may not see, so that nothing can be learned by trying IDs.
func unknownOperation(id string) *failure {
	return fail(http.StatusNotFound, CodeUnknown, "there is no operation %q here, or it is none of yours: `ebb list` shows those that you may see", brief(id))
}

// away reports whether an error says that the engine may be there on the next call.
func away(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return true // a limit of ours on one call; that the caller has not gone is known
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

// write answers with the problem. instance is the request's ID.
func (f *failure) write(w http.ResponseWriter, instance string) {
	if f.Status == statusGone {
		w.WriteHeader(statusGone)
		return
	}
	p := f.Problem
	p.Type, p.Title, p.Instance = "about:blank", http.StatusText(p.Status), instance
	if f.retry > 0 {
		setRetryAfter(w.Header(), f.retry)
	}
	if f.challenge != "" {
		w.Header().Set("WWW-Authenticate", f.challenge)
	}
	if len(f.allow) > 0 {
		w.Header().Set("Allow", strings.Join(f.allow, ", "))
	}
	w.Header().Set("Content-Type", typeProblem)
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // nobody is left to tell
}

func setRetryAfter(h http.Header, d time.Duration) {
	h.Set("Retry-After", strconv.Itoa(int(d.Seconds())))
}

// brief cuts what a caller has sent down to what is needed to recognise it.
func brief(text string) string {
	const most = 64
	if r := []rune(text); len(r) > most {
		return string(r[:most]) + "…"
	}
	return text
}
