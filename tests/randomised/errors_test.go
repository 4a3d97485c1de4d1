package randomised

import (
	"errors"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"

	"ebb/internal/operation"
)

// permanentError returns an error of an activity that must not be retried.
func permanentError(errorType, text string) error {
	return temporal.NewNonRetryableApplicationError(text, errorType, nil)
}

// errorText returns the text by which an outcome has to report an error: without
// what Temporal puts around it, and of a timeout what timed out.
func errorText(err error) string {
	var (
		app     *temporal.ApplicationError
		timeout *temporal.TimeoutError
		call    *temporal.ActivityError
	)
	switch {
	case temporal.IsCanceledError(err):
		return "cancelled"
	case errors.As(err, &app):
		return app.Message()
	case errors.As(err, &timeout) && errors.As(err, &call):
		text := call.ActivityType().GetName() + " did not end in time"
		if timeout.TimeoutType() == enumspb.TIMEOUT_TYPE_HEARTBEAT {
			text = call.ActivityType().GetName() + ": its worker is gone"
		}
		if cause := timeout.Unwrap(); cause != nil {
			text += ": " + errorText(cause)
		}
		return text
	}
	return err.Error()
}

// received returns an error as whoever waits for a workflow gets it.
func received(err error) error {
	convert := temporal.GetDefaultFailureConverter()
	return convert.FailureToError(convert.ErrorToFailure(err))
}

// nodeOutcome returns the outcome of a node from the error of its child workflow,
// and whether it has one. In that of a cancelled one it comes after the message.
func nodeOutcome(err error) (o operation.NodeOutcome, ok bool) {
	var (
		app      *temporal.ApplicationError
		canceled *temporal.CanceledError
	)
	switch {
	case errors.As(err, &canceled):
		var message string
		ok = canceled.HasDetails() && canceled.Details(&message, &o) == nil
	case errors.As(err, &app):
		ok = app.HasDetails() && app.Details(&o) == nil
	}
	return o, ok
}
