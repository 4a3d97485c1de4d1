package activities

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The engine's clock makes deadlines; a worker's may be minutes before or behind it.
func TestWorkerWithAWrongClockHasAsLongAsAnyOther(t *testing.T) {
	started := time.Date(2026, 12, 3, 10, 0, 0, 0, time.UTC)
	for _, wrong := range []time.Duration{-7 * time.Minute, 0, 7 * time.Minute} {
		now := started.Add(wrong)
		require.Equal(t, now.Add(10*time.Minute), localTime(now, started, started.Add(10*time.Minute)))
		require.Equal(t, now.Add(10*time.Minute), lookUntil(now, started, started.Add(10*time.Minute)))
		require.Equal(t, now.Add(-time.Minute), localTime(now, started, started.Add(-time.Minute)), "it has passed")
		require.Equal(t, now.Add(lookFor), lookUntil(now, started, started.Add(-time.Minute)), "one look all the same")
	}
}
