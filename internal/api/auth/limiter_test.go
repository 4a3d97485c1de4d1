package auth

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLimitersForgetWhoIsIdle(t *testing.T) {
	clock := time.Unix(1, 0)
	l := NewLimiter(1, 2)
	l.Now = func() time.Time { return clock }
	for i := range maxKeys {
		require.True(t, l.Allow(string(rune(i+1000))))
	}
	require.Len(t, l.limiters, maxKeys)
	clock = clock.Add(time.Minute)
	require.True(t, l.Allow("new"))
	require.Len(t, l.limiters, 1)
}
