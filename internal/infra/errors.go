package infra

import (
	"errors"
	"fmt"
)

// permanentError is an error with which the same call would fail again.
type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Permanent reports whether the same call is certain to fail again, until somebody
// changes the configuration, the permissions or the machines.
func Permanent(err error) bool {
	var p *permanentError
	return errors.As(err, &p)
}

// permanentf is fmt.Errorf for an error that Permanent reports.
func permanentf(format string, args ...any) error {
	return &permanentError{fmt.Errorf(format, args...)}
}
