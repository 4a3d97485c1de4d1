package wait

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		require.NoError(t, Sleep(t.Context(), time.Hour))
		require.Equal(t, time.Hour, time.Since(began))

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began = time.Now()
		require.ErrorIs(t, Sleep(ctx, time.Hour), context.DeadlineExceeded)
		require.Equal(t, time.Minute, time.Since(began))
	})
}

func TestPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		began := time.Now()
		require.NoError(t, Poll(t.Context(), time.Second, func() (bool, error) { asked++; return asked == 3, nil }))
		require.Equal(t, 2*time.Second, time.Since(began), "it is asked at once, and then every second")

		broken := errors.New("broken")
		require.ErrorIs(t, Poll(t.Context(), time.Second, func() (bool, error) { return false, broken }), broken)

		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		require.ErrorIs(t, Poll(ctx, time.Second, func() (bool, error) { return false, nil }), context.DeadlineExceeded)
	})
}

func TestEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		stop := Every(time.Second, func() { calls++; time.Sleep(300 * time.Millisecond) })
		time.Sleep(3*time.Second + 100*time.Millisecond)
		stop() // the third call is under way
		require.Equal(t, 3, calls)
		time.Sleep(time.Minute)
		require.Equal(t, 3, calls)
	})
}
