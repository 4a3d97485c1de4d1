package auth

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// The rate of failed authentications per IP address, and their burst.
const (
	FailuresPerSecond = 5
	FailuresBurst     = 20
)

// RecheckInterval is for how long a token or a certificate that was taken away, or whose
// rights were, keeps its open streams.
const RecheckInterval = 10 * time.Second

// Limiter has a rate limit for each key.
type Limiter struct {
	perSecond rate.Limit
	burst     int
	Now       func() time.Time

	mu       sync.Mutex
	limiters map[string]*rate.Limiter
}

// maxKeys limits the number of keys that are remembered.
const maxKeys = 10_000

// NewLimiter returns a Limiter of so many events of each key per second, and so many at once.
func NewLimiter(perSecond, burst int) *Limiter {
	return &Limiter{perSecond: rate.Limit(perSecond), burst: burst, Now: time.Now, limiters: map[string]*rate.Limiter{}}
}

// Allow reports whether an event of a key may happen now.
func (l *Limiter) Allow(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.Now()
	one, ok := l.limiters[key]
	if !ok {
		if len(l.limiters) >= maxKeys {
			l.forget(now)
		}
		one = rate.NewLimiter(l.perSecond, l.burst)
		l.limiters[key] = one
	}
	return one.AllowN(now, 1)
}

// forget removes the keys whose limit is not used at present, which makes no difference
// to them. If there are none it removes all: then requests come from too many addresses
// for a limit by address.
func (l *Limiter) forget(now time.Time) {
	for key, one := range l.limiters {
		if one.TokensAt(now) >= float64(l.burst) {
			delete(l.limiters, key)
		}
	}
	if len(l.limiters) >= maxKeys {
		clear(l.limiters)
	}
}
