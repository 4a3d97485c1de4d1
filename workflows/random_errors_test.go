package workflows

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.temporal.io/sdk/temporal"

	"ebb/activities"
)

// decided are causes that a workflow finds itself, without an activity that fails.
var decided = []string{"no time left before the deadline", "was not started: the deadline", "not started: control plane", "asked for another try"}

func firstErrorReported(o *outcome) string {
	for id, err := range o.ends {
		first := o.firstFatal(id)
		if first == nil {
			if early := o.gaveUpEarly(id, err); early != "" {
				return early
			}
			continue
		}
		if err == nil {
			return fmt.Sprintf("%s ended well though %s %s had failed: %s", id, first.name, first.node, first.text)
		}
		text := reason(err)
		if id == o.operation {
			text = o.text
		}
		switch {
		case strings.Contains(text, first.text):
		case o.endedBy(id, first.at):
		case !temporal.IsCanceledError(err) && slices.ContainsFunc(decided, func(cause string) bool { return strings.Contains(text, cause) }):
		default:
			return fmt.Sprintf("%s: the first error was %s %s at %v: %q; reported is %q", id, first.name, first.node, first.at.Sub(epoch), first.text, text)
		}
	}
	return ""
}

// gaveUpEarly says which drain a workflow ended with although another attempt was due.
func (o *outcome) gaveUpEarly(id string, err error) string {
	for _, f := range o.failed {
		ended := err != nil && !temporal.IsCanceledError(err) && strings.HasSuffix(reason(err), f.text)
		if f.workflow == id && f.name == "Drain" && ended && !o.paused {
			return fmt.Sprintf("%s ended with attempt %d to drain %s, and another was due: %s", id, f.nth, f.node, f.text)
		}
	}
	return ""
}

// endedBy reports whether somebody had ended a workflow before a moment.
func (o *outcome) endedBy(workflow string, at time.Time) bool {
	skipped := o.skipped[o.children[workflow].Node.Name]
	return !o.cancelled.IsZero() && !o.cancelled.After(at) || !skipped.IsZero() && !skipped.After(at)
}

// firstFatal is the first error that a workflow has to end with, if there is one.
func (o *outcome) firstFatal(workflow string) (first *callFailure) {
	for i, f := range o.failed {
		if f.workflow == workflow && (first == nil || f.at.Before(first.at)) && o.fatal(f) {
			first = &o.failed[i]
		}
	}
	return first
}

// fatal reports whether an operation has to end with this error. What is put back
// at the end never is its error, preflight gathers its faults, and a drain that
// fails may be tried again.
func (o *outcome) fatal(f callFailure) bool {
	child, isChild := o.children[f.workflow]
	switch f.name {
	case "Release", "Preflight", "DetachISO":
		return false
	case "Etcd": // before the first node it is one fault among others
		return isChild
	case "Uncordon":
		return isChild && o.did[f.workflow+"CheckVersion"+f.node]
	case "Drain":
		attempts, deadline := o.m.settings.Scale.Attempts, o.status.Deadline
		if isChild {
			attempts, deadline = child.Retries+1, child.Deadline
		}
		var app *temporal.ApplicationError
		again := temporal.IsTimeoutError(f.err) || errors.As(f.err, &app) && app.Type() == activities.TypeDrain
		late := !o.paused && !f.at.Add(o.m.s.drain.RetryInterval).Before(deadline)
		return !again || f.nth >= attempts || late
	}
	return true
}

func allFaultsReported(o *outcome) string {
	if o.kind != KindUpgrade || !strings.Contains(o.text, "is not fit for an upgrade") {
		return ""
	}
	for _, f := range o.failed {
		if (f.name == "Preflight" || f.name == "Etcd") && f.workflow == o.operation && !strings.Contains(o.text, f.text) {
			return fmt.Sprintf("the fault of %s is not reported: %s", f.node, f.text)
		}
	}
	for _, n := range o.m.planned() {
		result, err := o.m.preflight(activities.PreflightInput{Node: n})
		looked := o.did[o.operation+"Preflight"+n.Name]
		for _, fault := range result.Faults {
			if err == nil && looked && !strings.Contains(o.text, fault) {
				return "a fault is not reported: " + fault
			}
		}
	}
	return ""
}
