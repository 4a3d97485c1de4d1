package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"github.com/spf13/cobra"

	"ebb/internal/lease"
	"ebb/internal/ops"
)

// Exit codes; the help topic exit-codes explains them.
const (
	exitDone       = 0
	exitFailed     = 1
	exitUsage      = 2
	exitRefused    = 3
	exitRolledBack = 4
	exitStopped    = 130 // 128 + SIGINT, as shells have it
)

// usageError is a wrong command line.
type usageError struct {
	command string
	text    string
}

func (e *usageError) Error() string {
	return fmt.Sprintf("%s (see `%s --help`)", e.text, e.command)
}

func usage(cmd *cobra.Command, format string, args ...any) error {
	return &usageError{command: cmd.CommandPath(), text: fmt.Sprintf(format, args...)}
}

// outcomeError is an operation that ended otherwise than done.
type outcomeError struct{ op ops.Operation }

func (e *outcomeError) Error() string { return verdict(e.op) }

// stoppedError is the end of following, on the user's request.
type stoppedError struct{ id string }

func (e *stoppedError) Error() string {
	return fmt.Sprintf("stopped following; operation %s goes on.\n  follow it again:  ebb watch %s\n  take it back:     ebb cancel %s", e.id, e.id, e.id)
}

// exitCode is the code for the error a command ended with.
func exitCode(err error) int {
	var (
		wrong     *usageError
		request   *ops.RequestError
		conflict  *ops.ConflictError
		notNow    *ops.NotNowError
		unwilling *refusedPlan
		outcome   *outcomeError
		stopped   *stoppedError
	)
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &wrong), errors.As(err, &request):
		return exitUsage
	case errors.As(err, &conflict), errors.As(err, &notNow), errors.As(err, &unwilling), errors.Is(err, lease.ErrHeld):
		return exitRefused
	case errors.As(err, &outcome):
		return outcomeCode(outcome.op)
	case errors.As(err, &stopped), errors.Is(err, context.Canceled):
		return exitStopped
	}
	return exitFailed
}

func outcomeCode(op ops.Operation) int {
	switch {
	case op.State == ops.Done || op.State == ops.Running:
		return exitDone
	case op.State == ops.Refused:
		return exitRefused
	case op.RolledBack:
		return exitRolledBack
	}
	return exitFailed
}

// message is an error as it is printed.
func message(err error) string {
	if errors.Is(err, context.Canceled) {
		return "stopped"
	}
	return noise.ReplaceAllString(err.Error(), "$1")
}

// noise is what gRPC puts around the error of a connection.
var noise = regexp.MustCompile(`failed reaching server: (?:last )?connection error: desc = "(?:transport: )?(?:[Ee]rror while dialing: )?([^"]*)"`)
