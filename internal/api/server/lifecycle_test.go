package server

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/api/wire"
)

// The last five seconds of a grace period of a minute are kept for responses and
// connections, and some of them are left before the process would be killed.
func TestDrainDeadlines(t *testing.T) {
	signal := time.Date(2026, 12, 1, 1, 0, 0, 0, time.UTC)
	for grace, want := range map[time.Duration][3]time.Duration{
		time.Minute:      {55 * time.Second, 57500 * time.Millisecond, 58750 * time.Millisecond},
		12 * time.Second: {10 * time.Second, 11 * time.Second, 11500 * time.Millisecond},
		3 * time.Second:  {2500 * time.Millisecond, 2750 * time.Millisecond, 2875 * time.Millisecond},
	} {
		at := drainDeadlinesFor(signal, grace)
		require.Equal(t, want, [3]time.Duration{at.requests.Sub(signal), at.responses.Sub(signal), at.connections.Sub(signal)})
	}
}

// What each policy does in each state.
func TestAdmission(t *testing.T) {
	type row struct {
		policy  drainPolicy
		follows bool
		want    [4]bool // Serving, Leaving, Cordoned, Terminating
	}
	for _, c := range []row{
		{alwaysServed, false, [4]bool{true, true, true, true}},
		{servedUntilTerminating, false, [4]bool{true, true, true, false}},
		{rejectedWhenCordoned, false, [4]bool{true, true, false, false}},
		{streamUntilCordoned, false, [4]bool{true, true, true, false}},
		{streamUntilCordoned, true, [4]bool{true, true, false, false}},
	} {
		l := newLifecycle(func(context.Context) {})
		for i, step := range []func(){func() {}, func() { l.Leave() }, func() { l.Cordon(false) }, l.Terminate} {
			step()
			_, leave, ok := l.admit(c.policy, c.follows)
			require.Equal(t, c.want[i], ok, "%v in %s", c, l.status().State)
			if ok {
				leave()
			}
			require.Zero(t, l.status().Running)
		}
	}
}

func TestLifecycleTransitions(t *testing.T) {
	worked := make(chan string, 10)
	l := newLifecycle(func(ctx context.Context) {
		worked <- "begins"
		<-ctx.Done()
		worked <- "ends"
	})
	require.Equal(t, "begins", <-worked)
	require.True(t, l.Uncordon(), "nothing to undo")
	require.True(t, l.Leave())
	require.False(t, l.Leave(), "it does already")
	require.Equal(t, wire.Leaving, l.status().State)
	require.Empty(t, worked, "it works as before")
	require.True(t, l.Uncordon())
	require.Equal(t, wire.Serving, l.status().State)
	require.True(t, l.Leave())
	require.True(t, l.Cordon(false))
	require.Equal(t, "ends", <-worked)
	require.False(t, l.Cordon(false), "it is already")
	require.False(t, l.Leave())
	require.True(t, l.Uncordon())
	require.Equal(t, "begins", <-worked)
	require.Equal(t, wire.Serving, l.status().State)
	require.True(t, l.Cordon(false))
	require.Equal(t, "ends", <-worked)
	require.False(t, l.Cordon(true), "the signal finds it cordoned")
	require.False(t, l.Uncordon(), "a signal cannot be undone")
	require.Equal(t, wire.Cordoned, l.status().State)
	l.Terminate()
	require.False(t, l.Uncordon())
	require.Equal(t, wire.Terminating, l.status().State)
}

func TestDrainedWaitsForBlockingRequests(t *testing.T) {
	l := newLifecycle(func(context.Context) {})
	<-l.Drained()
	_, first, _ := l.admit(rejectedWhenCordoned, false)
	_, look, _ := l.admit(servedUntilTerminating, false)
	_, second, _ := l.admit(streamUntilCordoned, true)
	l.Cordon(true)
	idle := l.Drained()
	first()
	select {
	case <-idle:
		t.Fatal("the stream is open")
	default:
	}
	second()
	<-idle // although somebody still looks at an operation
	require.Equal(t, 1, l.status().Running)
	look()
	require.Zero(t, l.status().Running)
}
