package ops

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.temporal.io/api/serviceerror"
	"google.golang.org/grpc/codes"
)

// RequestError is a request that makes no sense; nothing was started.
type RequestError struct{ Faults []string }

func (e *RequestError) Error() string { return strings.Join(e.Faults, "; ") }

// UnknownError is an operation ID that the engine does not know.
type UnknownError struct {
	ID   string
	Says string // who was asked, when that is not the engine itself
}

func (e *UnknownError) Error() string {
	if e.Says != "" {
		return e.Says
	}
	return fmt.Sprintf("there is no operation %q on this engine: `ebb list` shows the IDs of all that it knows "+
		"(is TEMPORAL_ADDRESS or TEMPORAL_NAMESPACE the one it was started with?)", e.ID)
}

// ConflictError is an operation ID that exists and stands for something else.
type ConflictError struct {
	ID            string
	Exists, Asked Request
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("operation %s exists already and is another one: it is the %s, this is the %s; nothing was started: "+
		"leave out --id, or choose another one", e.ID, e.Exists, e.Asked)
}

// named turns the engine's "not found" into an error that helps.
func named(id string, err error) error {
	var missing *serviceerror.NotFound
	if errors.As(err, &missing) {
		return &UnknownError{ID: id}
	}
	return err
}

// passing reports whether an error of the engine may be gone on the next call.
// ctx is the caller's own: when that has ended, so has the patience.
func passing(ctx context.Context, err error) bool {
	if err == nil || ctx.Err() != nil {
		return false
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return true // a limit of ours on one call
	}
	var coded serviceerror.ServiceError
	if !errors.As(err, &coded) {
		return false
	}
	switch coded.Status().Code() {
	case codes.NotFound, codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition, codes.Unimplemented:
		return false
	default: // an engine that goes down or comes up answers in many ways
		return true
	}
}
