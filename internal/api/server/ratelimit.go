package server

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// keyedLimiter has a rate limit for each key.
type keyedLimiter struct {
	perSecond rate.Limit
	burst     int
	now       func() time.Time

	mu       sync.Mutex
	limiters map[string]*rate.Limiter
}

// maxKeys limits the number of keys that are remembered.
const maxKeys = 10_000

func newKeyedLimiter(perSecond, burst int) *keyedLimiter {
	return &keyedLimiter{perSecond: rate.Limit(perSecond), burst: burst, now: time.Now, limiters: map[string]*rate.Limiter{}}
}

// allow reports whether an event of a key may happen now.
func (l *keyedLimiter) allow(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
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
func (l *keyedLimiter) forget(now time.Time) {
	for key, one := range l.limiters {
		if one.TokensAt(now) >= float64(l.burst) {
			delete(l.limiters, key)
		}
	}
	if len(l.limiters) >= maxKeys {
		clear(l.limiters)
	}
}
