package drain

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEvictionUnderWayOutlastsTheAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempt, end := context.WithCancel(t.Context())
		request, done := outlast(attempt, answerTime)
		defer done()
		end()
		time.Sleep(answerTime - time.Millisecond)
		synctest.Wait()
		require.NoError(t, request.Err(), "the API server is not cut off between its two writes")
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		require.ErrorIs(t, request.Err(), context.Canceled, "one that does not answer does not hold the attempt up")
	})
}

func TestFinishedEvictionLeavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempt, end := context.WithCancel(t.Context())
		request, done := outlast(attempt, answerTime)
		done()
		require.ErrorIs(t, request.Err(), context.Canceled)
		end()
		synctest.Wait()
	})
}
