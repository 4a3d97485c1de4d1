package cluster

import (
	"net/http"
	"sync/atomic"
	"time"
)

// Clock tells how far the clock of an API server is ahead of this machine's: times in its
// objects are by that clock. It reads it off the responses. Nil is a clock that agrees.
type Clock struct{ ahead atomic.Int64 }

// clockMargin is what does not count as a difference: the Date of a response has whole
// seconds, and the response was under way for a while.
const clockMargin = 3 * time.Second

// Ahead returns by how much the API server's clock was ahead when it answered last;
// negative when it was behind, 0 when they agree within three seconds.
func (c *Clock) Ahead() time.Duration {
	if c == nil {
		return 0
	}
	return time.Duration(c.ahead.Load())
}

// wrap returns a transport that reads the clock off each response.
func (c *Clock) wrap(next http.RoundTripper) http.RoundTripper { return clockTransport{c, next} }

type clockTransport struct {
	clock *Clock
	next  http.RoundTripper
}

func (t clockTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	sent := time.Now()
	resp, err := t.next.RoundTrip(req)
	if err == nil {
		t.clock.read(resp.Header.Get("Date"), sent, time.Now())
	}
	return resp, err
}

// WrappedRoundTripper lets client-go see through the wrapper.
func (t clockTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

// read takes the Date of a response to a request that was sent and answered at these times.
// One that took long says too little.
func (c *Clock) read(date string, sent, answered time.Time) {
	there, err := http.ParseTime(date)
	if err != nil || answered.Sub(sent) > clockMargin {
		return
	}
	ahead := there.Sub(answered)
	if ahead.Abs() <= clockMargin {
		ahead = 0
	}
	c.ahead.Store(int64(ahead))
}
