package activities

import (
	"context"
	"errors"
	"fmt"

	"go.temporal.io/sdk/temporal"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"ebb/internal/cluster"
	"ebb/internal/infra"
	"ebb/internal/lease"
	"ebb/internal/nodessh"
	"ebb/internal/operation"
	"ebb/internal/policy"
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
// says it all, and types of other packages mean nothing in a history. Credentials that
// an API server does not accept (401) may be replaced at any moment, as every token
// that expires is, so that they are like an API server that is away.
func classify(err error) error {
	var (
		refusal *policy.Refusal
		config  *cluster.ConfigError
		f       *fault
	)
	switch {
	case err == nil, errors.Is(err, context.Canceled), temporal.IsCanceledError(err):
		return err
	case errors.As(err, &f):
		return final(f.kind, err, f.details...)
	case errors.As(err, &refusal), errors.Is(err, lease.ErrHeld):
		return final(operation.TypeRefused, err)
	case errors.As(err, &config):
		return final(operation.TypeConfig, err)
	case nodessh.Permanent(err):
		return final(operation.TypeNodeAccess, err)
	case infra.Permanent(err):
		return final(operation.TypeConfig, err)
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return final(operation.TypeConfig, err)
	}
	return err
}

func final(kind string, err error, details ...any) error {
	return temporal.NewNonRetryableApplicationError(err.Error(), kind, nil, details...)
}
