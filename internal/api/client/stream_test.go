package client

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/api/wire"
	"ebb/internal/ops"
)

// streams answers with lines and ends the connection; half a line at the end is
// one that a restart has cut.
func streams(lines ...string) http.HandlerFunc {
	return answers(200, wire.ContentTypeEvents, strings.Join(lines, "\n"))
}

func event(seq int, text string) string {
	return fmt.Sprintf(`{"seq":"%d","type":"log","time":"2026-12-01T00:00:00Z","text":%q}`, seq, text)
}

func TestFollowedLogIsResumed(t *testing.T) {
	var asked []string
	ask := func(h http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			asked = append(asked, r.URL.Query().Get("after")+"/"+r.URL.Query().Get("tail"))
			h(w, r)
		}
	}
	url, _ := script(t,
		ask(streams("", event(4, "same"), event(5, "same"), `{"type":"retry","after":"5"}`, "")),
		ask(badGateway),
		ask(streams(event(6, "same"), `{"seq":"7","type":"log","text":"ha`)), // cut in the middle of a line
		ask(drains),
		ask(streams(event(7, "half no more"), "", event(8, "last"), `{"type":"end","after":"8"}`, "")))
	c := newCaller(t, url, "")
	var texts []string
	err := c.Events(t.Context(), "op-1", ops.EventFilter{Types: []ops.EventType{ops.LogEvent}, Tail: 2, Follow: true}, func(e ops.Event) error {
		texts = append(texts, e.Seq+" "+e.Text)
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, []string{"4 same", "5 same", "6 same", "7 half no more", "8 last"}, texts)
	require.Equal(t, []string{"/2", "5/", "5/", "6/", "6/"}, asked)
	require.Equal(t, 2, strings.Count(strings.Join(c.notices, "\n"), "log stream interrupted by a server restart, resuming…"))
	require.Equal(t, 2, strings.Count(strings.Join(c.notices, "\n"), "… recovered after"))
}

// A log that was not being followed yet cannot have been interrupted.
func TestLogOfAServerThatDrains(t *testing.T) {
	url, _ := script(t, drains, streams(event(1, "first"), `{"type":"end","after":"1"}`, ""))
	c := newCaller(t, url, "")
	require.NoError(t, c.Events(t.Context(), "op-1", ops.EventFilter{Follow: true}, func(ops.Event) error { return nil }))
	require.Len(t, c.notices, 2)
	require.Equal(t, "API server is restarting, retrying… (Ctrl-C to stop)", c.notices[0])
	require.Contains(t, c.notices[1], "recovered after")
}

// A server that interrupts every stream at once never counts as one that is back.
func TestServerThatAlwaysInterrupts(t *testing.T) {
	status := `{"type":"status","seq":"","operation":{"id":"op-1","kind":"Drain","cluster":"prod","state":"Running","started":"2026-12-01T00:00:00Z"}}`
	for name, handler := range map[string]http.HandlerFunc{
		"with a retry line": streams(`{"type":"retry","after":""}`, ""), "without": streams(""), "with the same status": streams(status, `{"type":"retry","after":""}`, ""),
	} {
		url, requests := script(t, handler)
		c := newCaller(t, url, "")
		changes := 0
		err := c.Watch(t.Context(), "op-1", func(ops.Operation) { changes++ })
		require.ErrorContains(t, err, "gave up after ", name)
		require.LessOrEqual(t, changes, 1)
		require.Less(t, requests.Load(), int32(60), "requests in ten minutes")
		require.LessOrEqual(t, c.clock.Sub(time.Unix(0, 0)), 11*time.Minute)
		require.NotContains(t, strings.Join(c.notices[min(changes*2, len(c.notices)):], "\n"), "recovered")
		for _, w := range c.waits {
			require.GreaterOrEqual(t, w, minBackoff)
		}
	}
}
