package drain

import (
	"fmt"
	"time"

	"ebb/internal/operation"

	"k8s.io/apimachinery/pkg/types"
)

// decision is what an attempt does next.
type decision struct {
	verdict verdict
	skip    []types.UID // terminating pods that are not waited for; when there are any, nothing else is decided
	leave   []types.UID // pods that have come back and stay on the node; likewise
	evict   []eviction  // evictions to request now, in this order
	held    []hold      // the other pods that could be evicted now, and why they are not
	read    read        // what to ask the API server for
	wake    time.Time   // when to decide again at the latest; zero = no such time
}

// verdict is how an attempt stands.
type verdict struct {
	outcome  outcome
	nodeGone bool                   // done: the Node object is gone
	warning  string                 // done: what is left to do
	cause    error                  // failed: one of the errors of this package
	reason   string                 // failed: for people
	blocked  []operation.BlockedPod // failed: because of these pods; nil = all that remain
}

type outcome int

const (
	goOn outcome = iota
	done
	failed
)

// read is a request that looks past the watch.
type read int

const (
	readNothing read = iota
	readNode
	readPods // of the node
)

// next decides what an attempt does next. It is a function of its arguments alone.
func next(s snapshot, now time.Time) decision {
	d := decision{skip: s.notWaitedFor(now), leave: s.leave(now)}
	if len(d.skip)+len(d.leave) > 0 {
		return d
	}
	if d.verdict = s.verdict(now); d.verdict.outcome != goOn {
		return d
	}
	d.wake = s.deadline
	if !s.emptied.IsZero() { // only its volumes are waited for
		d.wake = earliest(d.wake, s.detachLimit())
		return d
	}
	var at time.Time
	d.evict, d.held, at = s.evictions(now)
	d.wake = earliest(d.wake, at)
	d.read, at = s.nextRead(now, s.inFlight+len(d.evict))
	d.wake = earliest(d.wake, at)
	d.wake = earliest(d.wake, s.nextSkip())
	return d
}

// verdict returns whether the attempt is over.
func (s snapshot) verdict(now time.Time) verdict {
	switch {
	case !s.emptied.IsZero():
		return s.detached(now)
	case s.cordon == nodeNotFound, s.cordon == cordonShown && s.node == nil:
		return verdict{outcome: done, nodeGone: true}
	case s.cordon == notCordoned:
		return verdict{outcome: failed, cause: ErrUncordoned,
			reason: "the node is not cordoned, so evicted pods could come back to it; cordon it first"}
	case s.cordon == cordonShown && !s.node.Spec.Unschedulable:
		return verdict{outcome: failed, cause: ErrUncordoned,
			reason: "somebody uncordoned the node during the drain; nothing more was evicted"}
	case !now.Before(s.deadline):
		return s.timedOut(now)
	case s.cordon == cordonUnknown:
		return verdict{}
	}
	if forbidden := s.forbidden(); len(forbidden) > 0 {
		return verdict{outcome: failed, cause: ErrForbidden, blocked: forbidden,
			reason: fmt.Sprintf("%d pods may not be evicted with these settings", len(forbidden))}
	}
	if endless := s.recreated(func(w workload) bool { return w.endless(now) }); len(endless) > 0 {
		return verdict{outcome: failed, cause: ErrRecreated, blocked: endless,
			reason: fmt.Sprintf("evicted pods have come back to the cordoned node %d times", maxRecreations)}
	}
	return verdict{}
}

// timedOut returns the verdict on an attempt whose deadline has passed.
func (s snapshot) timedOut(now time.Time) verdict {
	v := verdict{outcome: failed, cause: ErrTimeout, reason: "no time was left for an attempt, nothing was evicted"}
	if s.started.Before(s.deadline) {
		v.reason = fmt.Sprintf("not empty after %s", now.Sub(s.started).Round(time.Second))
	}
	return v
}

// forbidden returns the pods whose eviction the settings do not allow.
func (s snapshot) forbidden() (blocked []operation.BlockedPod) {
	for _, p := range s.pods {
		if p.action == forbid && !p.left() {
			blocked = append(blocked, whyForbidden(p.Pod, s.settings))
		}
	}
	return blocked
}

// notWaitedFor returns the terminating pods that the settings do not wait for any longer,
// because the node is down.
func (s snapshot) notWaitedFor(now time.Time) (skip []types.UID) {
	for _, p := range s.pods {
		if at := s.skipAt(p); !at.IsZero() && !now.Before(at) {
			skip = append(skip, p.UID)
		}
	}
	return skip
}

// nextSkip returns when a pod will not be waited for any longer; zero = never.
func (s snapshot) nextSkip() (at time.Time) {
	for _, p := range s.pods {
		at = earliest(at, s.skipAt(p))
	}
	return at
}

// skipAt returns until when a terminating pod is waited for; zero = until it is gone.
func (s snapshot) skipAt(p pod) time.Time {
	ready, _ := nodeReady(s.node)
	if s.settings.SkipWaitForDelete <= 0 || ready && !s.machineDown || p.left() || p.DeletionTimestamp == nil {
		return time.Time{}
	}
	return p.DeletionTimestamp.Add(s.settings.SkipWaitForDelete - s.ahead)
}

// nextRead returns what the API server has to be asked for now, or when it has to be at
// the latest. inFlight is the number of evictions in flight.
func (s snapshot) nextRead(now time.Time, inFlight int) (read, time.Time) {
	switch {
	case s.reading:
		return readNothing, time.Time{}
	case now.Before(s.api.notBefore):
		return readNothing, s.api.notBefore
	case s.cordon == cordonUnknown:
		return readNode, time.Time{}
	case s.api.failures > 0:
		return readPods, time.Time{}
	}
	at := s.stale.relistAt(s.podsRemain() || inFlight > 0)
	if now.Before(at) {
		return readNothing, at
	}
	return readPods, time.Time{}
}
