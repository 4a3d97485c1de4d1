package activities

import (
	"context"
	"errors"
	"fmt"

	"go.temporal.io/sdk/temporal"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"ebb/internal/clusterstate"
	"ebb/internal/infra"
	"ebb/internal/nodessh"
	"ebb/internal/plan"
)

// Types of the errors that trying again cannot help. Every other error of an
// activity is retried by its policy.
const (
	TypeRefused     = "Refused"      // the operation must not start
	TypeConfig      = "Config"       // the configuration or the request is wrong
	TypeNodeAccess  = "NodeAccess"   // host key, login or address of a node is wrong
	TypeDrain       = "DrainFailed"  // an attempt ended with pods left; details: drain.Progress
	TypeCannotDrain = "CannotDrain"  // another attempt with the same settings would end the same way; details: drain.Progress
	TypeUncordoned  = "Uncordoned"   // somebody uncordoned the node during its drain
	TypeScript      = "ScriptFailed" // the script on a node failed
	TypeNotReady    = "NodeNotReady" // a node did not become Ready in time
	TypeVersion     = "WrongVersion" // a node is not at the version it should be at
	TypeUnhealthy   = "Unhealthy"    // the cluster is not fit for a step
)

// fault is an error that trying again cannot help.
type fault struct {
	kind    string
	err     error
	details []any
}

func (f *fault) Error() string { return f.err.Error() }
func (f *fault) Unwrap() error { return f.err }

func permanent(kind string, err error, details ...any) error {
	return &fault{kind: kind, err: err, details: details}
}

func permanentf(kind, format string, args ...any) error {
	return permanent(kind, fmt.Errorf(format, args...))
}

// classify is the one place that decides which errors are permanent, and turns
// them into what Temporal understands. It drops the chain of causes: the text
// says it all, and types of other packages mean nothing in a history.
func classify(err error) error {
	var (
		refusal *plan.Refusal
		f       *fault
	)
	switch {
	case err == nil, errors.Is(err, context.Canceled), temporal.IsCanceledError(err):
		return err
	case errors.As(err, &f):
		return final(f.kind, err, f.details...)
	case errors.As(err, &refusal), errors.Is(err, clusterstate.ErrHeld):
		return final(TypeRefused, err)
	case nodessh.Permanent(err):
		return final(TypeNodeAccess, err)
	case infra.Permanent(err):
		return final(TypeConfig, err)
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return final(TypeConfig, err)
	}
	return err
}

func final(kind string, err error, details ...any) error {
	return temporal.NewNonRetryableApplicationError(err.Error(), kind, nil, details...)
}
