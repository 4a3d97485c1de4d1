package cluster

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestClockOfTheAPIServerIsReadOffItsResponses(t *testing.T) {
	var wrong time.Duration
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(wrong).UTC().Format(http.TimeFormat))
	}))
	t.Cleanup(server.Close)
	clock := &Clock{}
	client := &http.Client{Transport: clock.wrap(http.DefaultTransport)}
	for _, wrong = range []time.Duration{7 * time.Minute, -7 * time.Minute, 0, time.Second} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
		require.NoError(t, err)
		resp, err := client.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		if wrong.Abs() < clockMargin {
			require.Zero(t, clock.Ahead(), "they agree")
			continue
		}
		require.InDelta(t, wrong.Seconds(), clock.Ahead().Seconds(), 2)
	}
	sent := time.Date(2026, 12, 3, 10, 0, 0, 0, time.UTC)
	clock.read(sent.Add(time.Hour).Format(http.TimeFormat), sent, sent.Add(20*time.Second))
	require.Zero(t, clock.Ahead(), "a slow response says nothing")
	require.Zero(t, (*Clock)(nil).Ahead())
}
