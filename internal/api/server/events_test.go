package server

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"ebb/internal/api/apitest"
	"ebb/internal/api/wire"
	"ebb/internal/ops"
)

// texts are the texts of a stream's events, and what it ended with.
func texts(t *testing.T, data []byte) (events []string, end map[string]any) {
	t.Helper()
	lines, err := linesOf(data)
	require.NoError(t, err)
	for _, line := range lines {
		switch line["type"] {
		case "log":
			events = append(events, line["text"].(string))
		case "end", "retry":
			require.Nil(t, end, "more than one end")
			end = line
		}
	}
	return events, end
}

func TestEventsOfWhatIsThere(t *testing.T) {
	b := newBed(t)
	b.ops.Add("op-1", "prod", "Running")
	b.ops.Say("one", "two", "three")
	a := b.ok("vera", "GET", "/v1/operations/op-1/events", nil)
	require.Equal(t, "no", a.header.Get("X-Accel-Buffering"))
	events, end := texts(t, a.body)
	require.Equal(t, []string{"one", "two", "three"}, events)
	require.Equal(t, map[string]any{"type": "end", "after": "3"}, end)

	events, end = texts(t, b.ok("vera", "GET", "/v1/operations/op-1/events?after=2", nil).body)
	require.Equal(t, []string{"three"}, events)
	require.Equal(t, "3", end["after"])

	events, end = texts(t, b.ok("vera", "GET", "/v1/operations/op-1/events?after=3", nil).body)
	require.Empty(t, events)
	require.Equal(t, "3", end["after"], "where it was")
}

// Each event is there when it happens; a cordon flushes, says where to go on, and
// going on there gives the rest.
func TestFollowAcrossACordon(t *testing.T) {
	b := newBed(t)
	b.ops.Add("op-1", "prod", "Running")
	reader := b.follow("/v1/operations/op-1/events?follow=true")
	next := func() string {
		for {
			line, err := reader.ReadString('\n')
			require.NoError(t, err)
			if line = strings.TrimSpace(line); line != "" {
				return line
			}
		}
	}
	for i := range 3 {
		b.ops.Say(fmt.Sprint("line ", i))
		require.Contains(t, next(), fmt.Sprintf(`"text":"line %d"`, i))
	}
	b.ok("ada", "POST", "/v1/lifecycle/cordon", nil)
	require.JSONEq(t, `{"type":"retry","after":"3"}`, next())
	_, err := reader.ReadByte()
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, wire.CodeDraining, b.do("vera", "GET", "/v1/operations/op-1/events?follow=true&after=3", "").problem(t).Code)

	b.ok("ada", "POST", "/v1/lifecycle/uncordon", nil)
	b.ops.Say("line 3")
	b.ops.Finish()
	events, end := texts(t, b.ok("vera", "GET", "/v1/operations/op-1/events?follow=true&after=3", nil).body)
	require.Equal(t, []string{"line 3"}, events)
	require.Equal(t, map[string]any{"type": "end", "after": "4"}, end)
}

// A stream with nothing to tell yet is opened all the same, and ends with the server.
func TestSilentStreamIsOpenedAndEnded(t *testing.T) {
	b := newBed(t)
	b.ops.Add("op-1", "prod", "Running")
	reader := b.follow("/v1/operations/op-1/events?follow=true")
	b.signal()
	data, err := io.ReadAll(reader)
	require.NoError(t, err)
	_, end := texts(t, data)
	require.Equal(t, map[string]any{"type": "retry", "after": ""}, end)
	require.NoError(t, b.end())
}

func TestStatusLines(t *testing.T) {
	b := newBed(t)
	b.ops.Add("op-1", "prod", "Running")
	b.ops.Say("one")
	lines, err := linesOf(b.ok("vera", "GET", "/v1/operations/op-1/events?types=status&after=1", nil).body)
	require.NoError(t, err)
	require.Len(t, lines, 2)
	require.Equal(t, []any{"status", "1"}, []any{lines[0]["type"], lines[0]["seq"]})
	require.Equal(t, "end", lines[1]["type"])

	reader, begun := b.follow("/v1/operations/op-1/events?types=status,log&follow=true"), ""
	for !strings.Contains(begun, `"Running"`) {
		line, err := reader.ReadString('\n')
		require.NoError(t, err)
		begun += line
	}
	b.ops.Finish()
	data, err := io.ReadAll(reader)
	require.NoError(t, err)
	lines, err = linesOf(append([]byte(begun), data...))
	require.NoError(t, err)
	var states []any
	for _, line := range lines {
		if line["type"] == "status" {
			states = append(states, line["operation"].(map[string]any)["state"])
		}
	}
	require.Equal(t, []any{"Running", "Done"}, states)
	require.Equal(t, map[string]any{"type": "end", "after": "1"}, lines[len(lines)-1])
}

// A caller that takes nothing does not hold what it would have been told: the
// stream ends, is cut, and no end line says otherwise.
func TestStreamThatIsNotRead(t *testing.T) {
	b := newBed(t)
	b.ops.Add("op-1", "prod", "Running")
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(b.url, "http://"))
	require.NoError(t, err)
	_, err = io.WriteString(conn, "GET /v1/operations/op-1/events?follow=true HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+b.tokens["vera"]+"\r\n\r\n")
	require.NoError(t, err)
	eventually(t, "it is open", func() bool { return b.server.lifecycle.status().Streams == 1 })
	b.ops.Say("one")
	require.NoError(t, conn.Close())
	eventually(t, "the stream has ended", func() bool { return b.server.lifecycle.status().Streams == 0 })
}

// brokenWriter takes so many bytes and then fails, in the middle of a line.
type brokenWriter struct {
	header http.Header
	left   int
	got    []byte
}

func (w *brokenWriter) Header() http.Header { return w.header }

func (w *brokenWriter) WriteHeader(int) {}

func (w *brokenWriter) Flush() {}

func (w *brokenWriter) Write(p []byte) (int, error) {
	n := min(len(p), w.left)
	w.got, w.left = append(w.got, p[:n]...), w.left-n
	if n < len(p) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

// After half a line nothing more is written, and the connection is cut.
func TestHalfALineIsTheLast(t *testing.T) {
	b := newBed(t)
	b.ops.Add("op-1", "prod", "Running")
	for i := range 10 {
		b.ops.Say("line " + strconv.Itoa(i))
	}
	r, err := http.NewRequestWithContext(t.Context(), "GET", "/v1/operations/op-1/events?follow=true", nil)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+b.tokens["vera"])
	w := &brokenWriter{header: http.Header{}, left: 200}
	require.PanicsWithValue(t, http.ErrAbortHandler, func() { b.server.ServeHTTP(w, r) })
	require.Len(t, w.got, 200)
	whole, half, _ := strings.Cut(string(w.got), "\n")
	require.True(t, json.Valid([]byte(whole)))
	require.NotContains(t, half[strings.LastIndex(half, "\n")+1:], "retry")
	require.Zero(t, b.server.lifecycle.status().Running)
	require.Zero(t, b.server.lifecycle.status().Streams)
}

// An error after the first line cannot be answered any more: the stream is cut, so
// that nobody takes it for whole.
func TestErrorInTheMiddleCutsTheStream(t *testing.T) {
	var operations *apitest.Operations
	b := newBed(t, func(o *Options) {
		operations, _ = o.Operations.(*apitest.Operations)
		o.Operations = failingLater{operations}
	})
	operations.Add("op-1", "prod", "Running")
	operations.Say("one")
	_, err := b.try("vera", "GET", "/v1/operations/op-1/events", "")
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

// failingLater fails after the events that there are.
type failingLater struct{ *apitest.Operations }

func (f failingLater) Events(ctx context.Context, id string, filter ops.EventFilter, each func(ops.Event) error) error {
	if err := f.Operations.Events(ctx, id, filter, each); err != nil {
		return err
	}
	return io.ErrNoProgress
}
