package api

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// limiters is a rate limit for each of many keys.
type limiters struct {
	perSecond rate.Limit
	burst     int
	now       func() time.Time

	mu    sync.Mutex
	byKey map[string]*rate.Limiter
}

// maxKeys bounds how many are remembered; those that have used nothing lately are
// forgotten first, which changes nothing for them.
const maxKeys = 10_000

func newLimiters(perSecond, burst int) *limiters {
	return &limiters{perSecond: rate.Limit(perSecond), burst: burst, now: time.Now, byKey: map[string]*rate.Limiter{}}
}

func (l *limiters) allow(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	one, ok := l.byKey[key]
	if !ok {
		if len(l.byKey) >= maxKeys {
			l.forget(now)
		}
		one = rate.NewLimiter(l.perSecond, l.burst)
		l.byKey[key] = one
	}
	return one.AllowN(now, 1)
}

// forget drops those that are full again. If none is, all start anew: somebody
// comes from more addresses than a limit by address is of use against.
func (l *limiters) forget(now time.Time) {
	for key, one := range l.byKey {
		if one.TokensAt(now) >= float64(l.burst) {
			delete(l.byKey, key)
		}
	}
	if len(l.byKey) >= maxKeys {
		clear(l.byKey)
	}
}
