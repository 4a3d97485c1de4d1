package ops

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"

	"ebb/internal/engine"
	"ebb/internal/operation"
	"ebb/internal/version"
)

func TestWatchUntilTheEnd(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.worker()
	for how, want := range map[string]State{"ok": Done, "refused": Refused, "rolled-back": RolledBack, "failed": Failed} {
		t.Run(how, func(t *testing.T) {
			l.run(drainOf("end-"+how, how))
			seen := l.follow("end-"+how, nil)
			last := seen[len(seen)-1]
			require.Equal(t, want, last.State)
			require.Equal(t, want == RolledBack, last.RolledBack)
			require.Equal(t, drainOf("end-"+how, how), last.Request)
			require.False(t, last.Ended.Before(last.Started))
			require.NotNil(t, last.Status)
			require.Equal(t, how, last.Status.Nodes[0].Node)
			if want == Done {
				require.JSONEq(t, `{"drained":["ok"]}`, string(last.Result))
				require.Equal(t, operation.PhaseDrained, last.Status.Nodes[0].Phase)
				return
			}
			require.Contains(t, last.Message, "it was ")
			require.Empty(t, last.Result)
		})
	}
}

func TestStartingTwiceReturnsTheFirst(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.worker()
	r := drainOf("twice", "hangs")
	l.run(r)

	op, started, err := l.ops.Start(t.Context(), r)
	require.NoError(t, err)
	require.False(t, started)
	require.Equal(t, Running, op.State)
	require.Equal(t, r, op.Request)

	require.NoError(t, l.ops.Cancel(t.Context(), "twice"))
	l.follow("twice", nil)
	op, started, err = l.ops.Start(t.Context(), r)
	require.NoError(t, err, "also when it is over")
	require.False(t, started)
	require.Equal(t, Cancelled, op.State)
}

func TestSameIDForSomethingElseIsAnError(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.run(drainOf("mine", "hangs"))
	for _, other := range []Request{
		drainOf("mine", "ok"),
		{ID: "mine", Kind: operation.KindDrain, Cluster: "staging", Nodes: []string{"hangs"}},
		{ID: "mine", Kind: operation.KindUpgrade, Cluster: "prod", Route: version.Route{Target: "1.37.2"}},
		{ID: "mine", Kind: operation.KindScaleDown, Cluster: "prod", Nodes: []string{"hangs"}},
	} {
		_, started, err := l.ops.Start(t.Context(), other)
		var conflict *ConflictError
		require.ErrorAs(t, err, &conflict)
		require.False(t, started)
		require.ErrorContains(t, err, "it is the drain of prod, hangs, this is the "+other.String())
	}
}

func TestCancelledDrainIsRolledBack(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.worker()
	l.run(drainOf("cancelled", "hangs"))
	l.follow("cancelled", func(op Operation) bool { return op.Live["hangs"].Drain != nil })

	require.NoError(t, l.ops.Cancel(t.Context(), "cancelled"))
	seen := l.follow("cancelled", nil)
	last := seen[len(seen)-1]
	require.Equal(t, Cancelled, last.State)
	require.True(t, last.RolledBack)
	require.Equal(t, "cancelled; uncordoned hangs", last.Message)
	require.NoError(t, l.ops.Cancel(t.Context(), "cancelled"), "cancelling what is over changes nothing")
}

func TestTerminatedIsNotRolledBack(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.worker()
	l.run(drainOf("killed", "hangs"))
	require.NoError(t, l.client.TerminateWorkflow(t.Context(), "killed", "", "enough"))
	op, err := l.ops.Get(t.Context(), "killed")
	require.NoError(t, err)
	require.Equal(t, Terminated, op.State)
	require.False(t, op.RolledBack)
	require.Contains(t, op.Message, "(enough); nothing was taken back")
}

// Also without a worker, and of one that was started by hand, whose memo is empty.
func TestRequestOfAnOperation(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.run(drainOf("asked", "hangs"))
	r, err := l.ops.Request(t.Context(), "asked")
	require.NoError(t, err)
	require.Equal(t, drainOf("asked", "hangs"), r)
	var unknown *UnknownError
	_, err = l.ops.Request(t.Context(), "nobody")
	require.ErrorAs(t, err, &unknown)

	l.worker()
	_, err = l.client.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: "by-hand", TaskQueue: engine.TaskQueue},
		string(operation.KindDrain), operation.DrainInput{Cluster: "prod", Nodes: []string{"hangs"}})
	require.NoError(t, err)
	r, err = l.ops.Request(t.Context(), "by-hand")
	require.NoError(t, err)
	require.Equal(t, "prod", r.Cluster)
}

func TestUnknownOperation(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	var unknown *UnknownError
	_, err := l.ops.Get(t.Context(), "nobody")
	require.ErrorAs(t, err, &unknown)
	require.ErrorContains(t, err, "ebb list")
	require.ErrorAs(t, l.ops.Cancel(t.Context(), "nobody"), &unknown)
	require.ErrorAs(t, l.ops.Watch(t.Context(), "nobody", func(Operation) {}), &unknown)
}

func TestNodeOfAnUpgradeSpeaksForItself(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.worker()
	l.run(Request{ID: "up", Kind: operation.KindUpgrade, Cluster: "prod", Route: version.Route{Target: "1.37.2"}})
	seen := l.follow("up", func(op Operation) bool {
		return op.Live["w1"].Drain != nil && op.Status != nil && op.Status.Nodes[1].Attempt == 2
	})
	op := seen[len(seen)-1]
	require.Equal(t, operation.PhaseDone, op.Status.Nodes[0].Phase)
	require.Equal(t, operation.PhaseDraining, op.Status.Nodes[1].Phase, "not what the parent says of it")
	require.Equal(t, &operation.DrainProgress{Node: "w1", Total: 7, Evicted: 3, Gone: 2, Waiting: 5,
		Blocked: []operation.BlockedPod{{Pod: "default/web-1", Budget: "default/web", Reason: "0 disruptions allowed"}}}, op.Live["w1"].Drain)

	list, err := l.ops.List(t.Context(), Filter{})
	require.NoError(t, err)
	require.Len(t, list, 1, "its child is not listed")
}

func TestList(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.worker()
	l.run(drainOf("a", "ok"))
	l.run(drainOf("b", "refused"))
	staging := Request{ID: "c", Kind: operation.KindDrain, Cluster: "staging", Nodes: []string{"hangs"}}
	l.run(staging)
	l.run(Request{ID: "d", Kind: operation.KindUpgrade, Cluster: "prod", Route: version.Route{Target: "1.37.2"}})
	l.follow("a", nil)
	l.follow("b", nil)

	states := func(f Filter) map[string]State {
		list, err := l.ops.List(t.Context(), f)
		require.NoError(t, err)
		got := map[string]State{}
		for _, op := range list {
			got[op.ID] = op.State
		}
		return got
	}
	all := map[string]State{"a": Done, "b": Refused, "c": Running, "d": Running}
	require.Eventually(t, func() bool { return len(states(Filter{})) == 4 && states(Filter{})["b"] == Refused }, 10*time.Second, 100*time.Millisecond)
	require.Equal(t, all, states(Filter{}))
	require.Equal(t, map[string]State{"c": Running}, states(Filter{Cluster: "staging"}))
	require.Equal(t, map[string]State{"d": Running}, states(Filter{Kind: operation.KindUpgrade}))
	require.Equal(t, map[string]State{"c": Running, "d": Running}, states(Filter{Open: true}))
	require.Len(t, states(Filter{Limit: 2}), 2)
}

func TestNoWorkerIsSaid(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.run(drainOf("alone", "ok"))
	op, err := l.ops.Get(t.Context(), "alone")
	require.NoError(t, err)
	require.Equal(t, Running, op.State)
	require.Nil(t, op.Status)
	require.Contains(t, op.Notice, `no worker polls the task queue "ebb": start one with`)

	l.worker()
	seen := l.follow("alone", nil)
	require.Equal(t, Done, seen[len(seen)-1].State)
	require.Empty(t, seen[len(seen)-1].Notice)
}

func TestWatchSurvivesARestartOfTheEngine(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.worker()
	var (
		mu      sync.Mutex
		notices []string
	)
	l.ops.WithNotices(func(text string) {
		mu.Lock()
		defer mu.Unlock()
		notices = append(notices, text)
	})
	l.run(drainOf("rides", "naps"))
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	running, ended := make(chan struct{}), make(chan error, 1)
	var once sync.Once
	var last Operation
	go func() {
		ended <- l.ops.Watch(ctx, "rides", func(op Operation) {
			last = op
			once.Do(func() { close(running) })
		})
	}()
	<-running
	_, port, _ := strings.Cut(l.server.Address(), ":")
	l.server.Stop()
	require.Eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return len(notices) == 1 }, 20*time.Second, 50*time.Millisecond)
	var number int
	require.NoError(t, json.Unmarshal([]byte(port), &number))
	l.start(number)
	require.NoError(t, <-ended)
	require.Equal(t, Done, last.State)
	require.Len(t, notices, 2)
	require.Contains(t, notices[0], "the engine does not answer")
	require.Contains(t, notices[1], "the engine is back after")
}
