package client

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

	"ebb/internal/api/wire"
)

// outcome is what an attempt means for the next one.
type outcome int

const (
	final       outcome = iota // a gateway has answered, with success or an error
	unavailable                // a gateway answers 503: it drains, or its engine does not answer
	limited                    // 429: too many requests or streams of this caller
	noResponse                 // the connection failed, or a proxy answers without a gateway behind it
	permanent                  // a retry cannot help
)

// attempt is the result of sending a request once: a response, or the error that came
// in place of one.
type attempt struct {
	status  int
	header  http.Header
	problem *wire.Problem // the body, if it is a problem document of a gateway
	err     error         // no response, or an incomplete one
}

// classify returns the outcome of an attempt. seenGateway says that a gateway has
// answered at this URL before. It does not look at whether the request may be repeated.
func classify(a attempt, seenGateway bool) outcome {
	switch {
	case a.err != nil && isPermanent(a.err, seenGateway):
		return permanent
	case a.err != nil:
		return noResponse
	case a.status == http.StatusTooManyRequests: // of a gateway, or of a proxy before it
		return limited
	case a.problem != nil && a.status == http.StatusServiceUnavailable:
		return unavailable
	case a.problem != nil:
		return final
	case a.status >= 500: // a gateway sends problem documents, so this is from a proxy
		return noResponse
	case a.status >= 300 || strings.HasPrefix(a.header.Get("Content-Type"), "text/html"):
		return permanent
	}
	return final
}

// isPermanent reports whether every further attempt would fail with the same error,
// such as an untrusted certificate. An unknown host is one that was misspelt, unless a
// gateway has answered there: then its name is gone with it, as in a cluster's DNS.
func isPermanent(err error, seenGateway bool) bool {
	var (
		name        *net.DNSError
		certificate *tls.CertificateVerificationError
		unknown     x509.UnknownAuthorityError
		host        x509.HostnameError
		record      tls.RecordHeaderError
		stray       *notGatewayError
	)
	return errors.As(err, &name) && name.IsNotFound && !seenGateway || errors.As(err, &certificate) || errors.As(err, &unknown) ||
		errors.As(err, &host) || errors.As(err, &record) || errors.As(err, &stray) || errors.Is(err, context.Canceled)
}

// Backoff between two attempts (SPEC §8).
const (
	initialBackoff = time.Second
	maxBackoff     = 25 * time.Second
	backoffFactor  = 1.6
	jitter         = 0.4 // as a fraction of the backoff, in both directions
	minBackoff     = 600 * time.Millisecond
)

// retryPolicy says for how long failed requests are retried.
type retryPolicy struct {
	timeout        time.Duration  // where a gateway is known to be
	unknownTimeout time.Duration  // where none has answered yet; the shorter of the two applies
	random         func() float64 // in [0, 1), for the jitter
}

// retryState is the state of the retries since the last success. The zero value means
// no attempt has failed.
type retryState struct {
	startedAt time.Time
	attempts  int
	notified  bool // whether the user was told
}

// nextBackoff records a failed attempt and returns how long to wait before the next; ok
// is false if that would exceed the timeout, which depends on whether a gateway has
// answered at this URL, be it with 503. The wait grows exponentially with jitter,
// and is never shorter than the server asked for in retryAfter.
func (s *retryState) nextBackoff(p retryPolicy, now time.Time, retryAfter time.Duration, seenGateway bool) (wait time.Duration, ok bool) {
	if s.startedAt.IsZero() {
		s.startedAt = now
	}
	step := float64(initialBackoff)
	for range min(s.attempts, 20) {
		step *= backoffFactor
	}
	s.attempts++
	wait = time.Duration(min(step, float64(maxBackoff)) * (1 + jitter*(2*p.random()-1)))
	if retryAfter > 0 {
		wait = max(wait, time.Duration(float64(retryAfter)*(1+jitter*p.random())))
	}
	wait = max(wait, minBackoff)
	return wait, now.Add(wait).Sub(s.startedAt) <= p.patience(seenGateway)
}

// patience returns for how long a gateway is retried.
func (p retryPolicy) patience(seenGateway bool) time.Duration {
	if seenGateway {
		return p.timeout
	}
	return min(p.unknownTimeout, p.timeout)
}

// retryAfter returns the duration in a Retry-After header, which may be in seconds or a
// date; 0 if there is none. It is at most an hour.
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
