package infra

import (
	"errors"
	"fmt"
)

// permanentError is an answer that the same call would get again.
type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Permanent reports that trying the same call again is useless: somebody has to
// change the configuration, the rights or the machines first.
func Permanent(err error) bool {
	var p *permanentError
	return errors.As(err, &p)
}

func refuse(format string, args ...any) error {
	return &permanentError{fmt.Errorf(format, args...)}
}
