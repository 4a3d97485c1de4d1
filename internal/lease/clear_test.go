package lease

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/clusterstate"
)

func TestClear(t *testing.T) {
	noon := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	alert := clusterstate.Record{State: clusterstate.Alert, Target: "1.37.2", Version: "1.37.2", Message: "w1 failed", Last: "up-1"}
	held := clusterstate.Record{State: clusterstate.Upgrading, From: clusterstate.Running, Target: "1.37.2", Holder: "up-2", Run: "r", Engine: "e", TakenOver: "up-0"}
	const by = "2026-12-01T12:00:00Z by ann@host "
	for _, c := range []struct {
		name   string
		record clusterstate.Record
		to     clusterstate.State
		dead   bool
		want   clusterstate.Record
		err    error
	}{
		{"Alert to Running", alert, clusterstate.Running, false, clusterstate.Record{State: clusterstate.Running, Last: "up-1", Cleared: by + "(was Alert): checked by hand"}, nil},
		{"a living holder", held, clusterstate.Running, false, clusterstate.Record{}, ErrHeld},
		{"a dead holder", held, clusterstate.Alert, true, clusterstate.Record{
			State: clusterstate.Alert, Target: "1.37.2", TakenOver: "up-0,up-2", Cleared: by + "(was Upgrading, held by up-2): checked by hand",
			Message: "cleared " + by + "(was Upgrading, held by up-2): checked by hand",
		}, nil},
		{"nothing to clear", clusterstate.Record{State: clusterstate.Running}, clusterstate.Running, false, clusterstate.Record{}, ErrClear},
	} {
		got, err := cleared(t.Context(), c.record, Clearance{To: c.to, By: "ann@host", Reason: "checked\nby hand",
			Dead: func(context.Context, clusterstate.Record) (bool, error) { return c.dead, nil }}, noon)
		require.ErrorIs(t, err, c.err, c.name)
		require.Equal(t, c.want, got, c.name)
	}
}

func TestClearIsKeptByWhatComesAfter(t *testing.T) {
	s, _ := store(t)
	_, err := s.Acquire(t.Context(), claim("up-1", clusterstate.Scaling))
	require.NoError(t, err)
	record, err := s.Clear(t.Context(), Clearance{To: clusterstate.Running, By: "ann", Reason: "gone",
		Dead: func(context.Context, clusterstate.Record) (bool, error) { return true, nil }})
	require.NoError(t, err)
	_, err = s.Acquire(t.Context(), claim("drain-1", clusterstate.Draining))
	require.NoError(t, err)
	finish(t, s, Outcome{Operation: "drain-1"})
	now, err := s.Get(t.Context())
	require.NoError(t, err)
	require.Contains(t, now.Cleared, "by ann (was Scaling, held by up-1): gone")
	require.Equal(t, record.Cleared, now.Cleared)
	require.Equal(t, "up-1", now.TakenOver)
}
