package api

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// verdict is what an attempt at a call has come to.
type verdict int

const (
	answered verdict = iota // by a gateway: that stands, whatever it says
	leaving                 // a gateway has said itself that another will answer, or that its engine will
	absent                  // nobody has answered, or a proxy that has nobody behind it
	hopeless                // to try again cannot help
)

// reply is what an attempt at a call was answered with, or why it was not.
type reply struct {
	status  int
	header  http.Header
	problem *Problem // of a gateway, when it is one
	err     error    // there was no answer, or it broke off
}

// classify sorts what an attempt has come to. Whether the call may be repeated at
// all is for its caller to know.
func classify(r reply) verdict {
	switch {
	case r.err != nil && permanent(r.err):
		return hopeless
	case r.err != nil:
		return absent
	case r.problem != nil && r.status == http.StatusServiceUnavailable:
		return leaving
	case r.problem != nil:
		return answered
	case r.status >= 500: // a gateway's own errors are problems: this is a proxy's
		return absent
	case r.status >= 300 || strings.HasPrefix(r.header.Get("Content-Type"), "text/html"):
		return hopeless
	}
	return answered
}

// permanent reports whether no attempt at a connection can go better: the name
// does not exist, or the other side is not who it should be.
func permanent(err error) bool {
	var (
		name        *net.DNSError
		certificate *tls.CertificateVerificationError
		unknown     x509.UnknownAuthorityError
		host        x509.HostnameError
		record      tls.RecordHeaderError
		stray       *strayError
	)
	return errors.As(err, &name) && name.IsNotFound || errors.As(err, &certificate) || errors.As(err, &unknown) ||
		errors.As(err, &host) || errors.As(err, &record) || errors.As(err, &stray) || errors.Is(err, context.Canceled)
}

// Waits between two attempts (SPEC §8).
const (
	firstWait = time.Second
	lastWait  = 25 * time.Second
	growth    = 1.6
	jitter    = 0.4 // of the wait, to either side
	leastStep = 600 * time.Millisecond
)

// patience is how long a client keeps trying.
type patience struct {
	long  time.Duration // while a gateway is being replaced
	short time.Duration // while nothing says that there is one: a proxy with nobody behind it, a refused connection
	dice  func() float64
}

// outage is the time in which a client gets no answer. Its zero value is none.
type outage struct {
	began time.Time
	tries int
	known bool // a gateway has said that it goes away, or one has answered at this address before
	said  bool // the user was told
}

// next is the wait before the next attempt; ok is false when it would be too late.
func (o *outage) next(p patience, now time.Time, v verdict, asked time.Duration) (wait time.Duration, ok bool) {
	if o.began.IsZero() {
		o.began = now
	}
	o.known = o.known || v == leaving
	step := float64(firstWait)
	for range min(o.tries, 20) {
		step *= growth
	}
	o.tries++
	wait = time.Duration(min(step, float64(lastWait)) * (1 + jitter*(2*p.dice()-1)))
	if asked > 0 { // never earlier than the server wants
		wait = max(wait, time.Duration(float64(asked)*(1+jitter*p.dice())))
	}
	wait = max(wait, leastStep)
	return wait, now.Add(wait).Sub(o.began) <= o.limit(p)
}

func (o *outage) limit(p patience) time.Duration {
	if o.known {
		return p.long
	}
	return min(p.short, p.long)
}

// retryAfter is what a server asks for, in seconds or as a date; 0 = nothing.
func retryAfter(h http.Header, now time.Time) time.Duration {
	text := h.Get("Retry-After")
	if seconds, err := strconv.Atoi(text); err == nil {
		return max(0, time.Duration(min(seconds, 3600))*time.Second)
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, min(at.Sub(now), time.Hour))
	}
	return 0
}
