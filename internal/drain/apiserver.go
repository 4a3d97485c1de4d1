package drain

import (
	"fmt"
	"time"
)

const (
	// An API server that does not answer is tried again after 0.25 to 5 s: a restart
	// takes it 2 to 10 s.
	firstAPIRetry = 250 * time.Millisecond
	lastAPIRetry  = 5 * time.Second
	// defaultThrottle is for a 429 without Retry-After.
	defaultThrottle = time.Second
	// Delays before an eviction is tried again that was refused for a reason that no
	// change in the watch can lift: they double from the first to the last.
	firstRetry = 1 * time.Second
	lastRetry  = 10 * time.Second
)

// apiServer is whether the API server takes requests now.
type apiServer struct {
	failures  int       // requests in a row without an answer
	notBefore time.Time // of the next request
	problem   string    // why
}

// failed records a request without an answer.
func (a *apiServer) failed(err error, retryAfter time.Duration, now time.Time, jitter float64) {
	a.failures++
	a.notBefore = now.Add(max(retryAfter, backoff(a.failures, firstAPIRetry, lastAPIRetry, jitter)))
	a.problem = fmt.Sprintf("no answer from the API server, trying again: %v", err)
}

// throttled records a 429 of API priority and fairness: the API server is overloaded,
// and no request of any kind is sent before the time it has named.
func (a *apiServer) throttled(retryAfter time.Duration, message string, now time.Time) {
	retryAfter = max(retryAfter, defaultThrottle)
	a.notBefore = now.Add(retryAfter)
	a.problem = fmt.Sprintf("the API server has too much to do, trying again in %s: %s", retryAfter, message)
}

// answered records an answer, and reports whether it is the first one after failures.
func (a *apiServer) answered() bool {
	again := a.failures > 0
	if again {
		a.failures, a.notBefore = 0, time.Time{}
	}
	return again
}

// unavailable returns why no eviction can be requested now, whatever the budgets
// allow; "" when one can.
func (a apiServer) unavailable(now time.Time) string {
	if a.failures > 0 || now.Before(a.notBefore) {
		return a.problem
	}
	return ""
}

// backoff returns the delay before the nth retry, n from 1: it doubles from first to
// last, and is up to half as long again. jitter is in [0, 1).
func backoff(n int, first, last time.Duration, jitter float64) time.Duration {
	d := first << min(n-1, 10)
	return min(d+time.Duration(jitter*float64(d/2)), last-time.Duration(jitter*float64(last/4)))
}

// earliest returns the earlier of the times that are set.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
