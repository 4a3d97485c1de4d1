package workflows

import (
	"fmt"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"ebb/activities"
)

// fault is what goes wrong with one attempt at an activity.
type fault int

// Faults of an attempt, whatever the activity.
const (
	noFault        fault = iota
	faultSlow            // it takes its time, perhaps more than it has
	faultAgain           // it fails before it has done anything, and may be tried again
	faultOutage          // so do all attempts for a while
	faultLost            // it is done, but its answer is an error
	faultSilent          // it is done, but there is no answer
	faultHang            // there is no answer, and nothing was done
	faultDies            // its worker dies in the middle
	faultPermanent       // it fails for good
)

// drawFault draws by the name of the call, so that the order of calls does not matter.
func (e *engine) drawFault(c *activityCall, attempt int) (fault, *dice) {
	d := e.m.dice("call", c.workflow, c.name, c.node, c.nth, attempt)
	if e.m.calm {
		return noFault, d
	}
	s, permanent := e.m.s, e.m.s.permanent
	if c.options.ScheduleToCloseTimeout >= settleFor {
		permanent /= 4 // what is put back may fail as well, but a run in which it does shows less
	}
	switch {
	case d.chance(permanent):
		return faultPermanent, d
	case d.chance(s.outage):
		return faultOutage, d
	case d.chance(s.again):
		return faultAgain, d
	case d.chance(s.lost):
		return draw(d, faultLost, faultSilent), d
	case d.chance(s.hang):
		return draw(d, faultHang, faultDies), d
	case d.chance(s.slow):
		return faultSlow, d
	}
	return noFault, d
}

// attempt is one run of an activity on a worker.
func (e *engine) attempt(ctx workflow.Context, c *activityCall, attempt int) (any, error) {
	what, d := e.drawFault(c, attempt)
	text := fmt.Sprintf("injected %s.%d", c, attempt)
	limit := workflow.Now(ctx).Add(c.options.StartToCloseTimeout)
	if c.expires.Before(limit) {
		limit = c.expires
	}
	latency := d.span(time.Millisecond, 50*time.Millisecond)
	if what == faultSlow {
		latency = d.span(100*time.Millisecond, 40*time.Second)
	}
	if over, err := e.wait(ctx, c, latency, limit); over {
		return nil, err
	}
	switch what {
	case faultPermanent:
		return nil, fails(permanentKind(c.name), text+": forbidden")
	case faultOutage:
		c.outage = workflow.Now(ctx).Add(d.span(time.Minute, draw(d, 3*time.Minute, 9*time.Minute, 30*time.Minute)))
		return nil, temporal.NewApplicationError(text+": no route to host", "OpError")
	case faultAgain:
		return nil, temporal.NewApplicationError(text+": connection refused", "OpError")
	case faultHang:
		return nil, e.silence(ctx, c, limit)
	default:
	}
	after, finish := c.act(e.m, c.in)
	if what == faultDies && c.options.HeartbeatTimeout > 0 {
		if over, err := e.wait(ctx, c, after/2, limit); over {
			return nil, err
		}
		return nil, e.silence(ctx, c, limit)
	}
	if over, err := e.wait(ctx, c, after, limit); over {
		return nil, err
	}
	out, err := finish()
	switch what {
	case faultLost:
		return nil, temporal.NewApplicationError(text+": connection reset by peer", "OpError")
	case faultSilent, faultDies:
		return nil, e.silence(ctx, c, limit)
	default:
		return out, err
	}
}

// permanentKind is the type of an error that trying again cannot help.
func permanentKind(activity string) string {
	switch activity {
	case "Preflight", "RunScript", "CheckVersion":
		return activities.TypeNodeAccess
	}
	return activities.TypeConfig
}

// wait lets an attempt take its time. It is over when it is past its limit, or
// when it hears of a cancellation, which only an activity that heartbeats does,
// within a second.
func (e *engine) wait(ctx workflow.Context, c *activityCall, takes time.Duration, limit time.Time) (over bool, err error) {
	end := workflow.Now(ctx).Add(takes)
	var hears workflow.Context
	if c.options.HeartbeatTimeout > 0 {
		hears = c.asked
		if hears.Err() != nil {
			return true, temporal.NewCanceledError()
		}
	}
	if !end.Before(limit) {
		end = limit
	}
	if e.pass(ctx, hears, end) {
		heard := workflow.Now(ctx).Add(700 * time.Millisecond)
		if heard.Before(end) {
			e.pass(ctx, nil, heard)
			return true, temporal.NewCanceledError()
		}
		e.pass(ctx, nil, end)
	}
	if end.Equal(limit) {
		return true, e.timedOut(c, limit)
	}
	return false, nil
}

func (e *engine) timedOut(c *activityCall, limit time.Time) error {
	if limit.Equal(c.expires) {
		return temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE, c.latest)
	}
	return temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_START_TO_CLOSE, nil)
}

// silence is a worker that is heard of no more.
func (e *engine) silence(ctx workflow.Context, c *activityCall, limit time.Time) error {
	if beat := c.options.HeartbeatTimeout; beat > 0 && workflow.Now(ctx).Add(beat).Before(limit) {
		e.pass(ctx, nil, workflow.Now(ctx).Add(beat))
		return temporal.NewHeartbeatTimeoutError()
	}
	e.pass(ctx, nil, limit)
	return e.timedOut(c, limit)
}
