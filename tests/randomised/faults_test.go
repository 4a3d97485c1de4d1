package randomised

import (
	"fmt"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"ebb/internal/operation"
)

// fault is what is injected into one attempt at an activity.
type fault int

// Faults of an attempt, whatever the activity.
const (
	faultNone         fault = iota
	faultSlow               // it takes its time, perhaps more than it has
	faultTransient          // it fails before it has done anything, and may be retried
	faultOutage             // so do all attempts for some minutes
	faultResponseLost       // it is done, and returns an error
	faultNoResponse         // it is done, and there is no response
	faultHang               // nothing is done, and there is no response
	faultWorkerDies         // its worker dies in the middle
	faultPermanent          // it fails with an error that must not be retried
)

// cleanupRetryTime is for how long a workflow retries an activity that takes
// something back.
const cleanupRetryTime = 24 * time.Hour

// cancellationDelay is how long after it an activity hears of a cancellation, by
// its heartbeat.
const cancellationDelay = 700 * time.Millisecond

// drawFault draws the fault of an attempt, by the name of the call, so that the
// order of calls does not matter.
func (e *engine) drawFault(c *activityCall, attempt int) (fault, *random) {
	rnd := e.m.random("call", c.workflow, c.name, c.node, c.number, attempt)
	if e.m.faultsOff {
		return faultNone, rnd
	}
	s, permanent := e.m.s, e.m.s.permanentRate
	if c.options.ScheduleToCloseTimeout >= cleanupRetryTime {
		permanent /= 4 // a cleanup may fail as well, but a run in which it does shows less
	}
	switch {
	case rnd.chance(permanent):
		return faultPermanent, rnd
	case rnd.chance(s.outageRate):
		return faultOutage, rnd
	case rnd.chance(s.transientRate):
		return faultTransient, rnd
	case rnd.chance(s.lostResponseRate):
		return draw(rnd, faultResponseLost, faultNoResponse), rnd
	case rnd.chance(s.hangRate):
		return draw(rnd, faultHang, faultWorkerDies), rnd
	case rnd.chance(s.slowRate):
		return faultSlow, rnd
	}
	return faultNone, rnd
}

// runAttempt is one attempt at an activity on a worker.
func (e *engine) runAttempt(ctx workflow.Context, c *activityCall, attempt int) (any, error) {
	injected, rnd := e.drawFault(c, attempt)
	text := fmt.Sprintf("injected %s.%d", c, attempt)
	limit := workflow.Now(ctx).Add(c.options.StartToCloseTimeout)
	if c.expiresAt.Before(limit) {
		limit = c.expiresAt
	}
	latency := rnd.between(time.Millisecond, 50*time.Millisecond)
	if injected == faultSlow {
		latency = rnd.between(100*time.Millisecond, 40*time.Second)
	}
	if over, err := e.work(ctx, c, latency, limit); over {
		return nil, err
	}
	switch injected {
	case faultPermanent:
		return nil, permanentError(permanentErrorType(c.name), text+": forbidden")
	case faultOutage:
		c.outageUntil = workflow.Now(ctx).Add(rnd.between(time.Minute, draw(rnd, 3*time.Minute, 9*time.Minute, 30*time.Minute)))
		return nil, temporal.NewApplicationError(text+": no route to host", "OpError")
	case faultTransient:
		return nil, temporal.NewApplicationError(text+": connection refused", "OpError")
	case faultHang:
		return nil, e.awaitTimeout(ctx, c, limit)
	default:
		return e.runModel(ctx, c, limit, injected, text)
	}
}

// runModel has the activity's model do its work, and then loses the response if
// that is the fault.
func (e *engine) runModel(ctx workflow.Context, c *activityCall, limit time.Time, injected fault, text string) (any, error) {
	takes, end := c.model(e.m, c.in)
	if injected == faultWorkerDies && c.options.HeartbeatTimeout > 0 {
		if over, err := e.work(ctx, c, takes/2, limit); over {
			return nil, err
		}
		return nil, e.awaitTimeout(ctx, c, limit)
	}
	if over, err := e.work(ctx, c, takes, limit); over {
		return nil, err
	}
	out, err := end()
	switch injected {
	case faultResponseLost:
		return nil, temporal.NewApplicationError(text+": connection reset by peer", "OpError")
	case faultNoResponse, faultWorkerDies:
		return nil, e.awaitTimeout(ctx, c, limit)
	default:
		return out, err
	}
}

// permanentErrorType returns a type of errors that must not be retried.
func permanentErrorType(activity string) string {
	switch activity {
	case "Preflight", "RunScript", "CheckVersion":
		return operation.TypeNodeAccess
	}
	return operation.TypeConfig
}

// work lets an attempt take its time. It is over, with an error, at its limit, or
// when it hears of a cancellation, which only an activity with heartbeats does.
func (e *engine) work(ctx workflow.Context, c *activityCall, takes time.Duration, limit time.Time) (over bool, err error) {
	end := workflow.Now(ctx).Add(takes)
	var caller workflow.Context
	if c.options.HeartbeatTimeout > 0 {
		caller = c.caller
		if caller.Err() != nil {
			return true, temporal.NewCanceledError()
		}
	}
	if !end.Before(limit) {
		end = limit
	}
	if e.waitUntil(ctx, caller, end) {
		hears := workflow.Now(ctx).Add(cancellationDelay)
		if hears.Before(end) {
			e.waitUntil(ctx, nil, hears)
			return true, temporal.NewCanceledError()
		}
		e.waitUntil(ctx, nil, end)
	}
	if end.Equal(limit) {
		return true, e.timeoutError(c, limit)
	}
	return false, nil
}

func (e *engine) timeoutError(c *activityCall, limit time.Time) error {
	if limit.Equal(c.expiresAt) {
		return temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE, c.lastError)
	}
	return temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_START_TO_CLOSE, nil)
}

// awaitTimeout is an attempt of which nothing is heard any more: it ends by the
// heartbeat timeout, or where there are no heartbeats at its limit.
func (e *engine) awaitTimeout(ctx workflow.Context, c *activityCall, limit time.Time) error {
	if beat := c.options.HeartbeatTimeout; beat > 0 && workflow.Now(ctx).Add(beat).Before(limit) {
		e.waitUntil(ctx, nil, workflow.Now(ctx).Add(beat))
		return temporal.NewHeartbeatTimeoutError()
	}
	e.waitUntil(ctx, nil, limit)
	return e.timeoutError(c, limit)
}
