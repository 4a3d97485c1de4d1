package embedded

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"ebb/internal/engine"
)

func history(t *testing.T, c client.Client, id string) []*historypb.HistoryEvent {
	t.Helper()
	var events []*historypb.HistoryEvent
	for i := c.GetWorkflowHistory(t.Context(), id, "", false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT); i.HasNext(); {
		event, err := i.Next()
		require.NoError(t, err)
		events = append(events, event)
	}
	return events
}

// TestStepsAreNotThrottled fails at the server's default of 20 polls a second:
// then a workflow task waits about 40 ms once the burst of 20 is used up.
func TestStepsAreNotThrottled(t *testing.T) {
	c := dial(t, start(t, t.TempDir()))
	startWorker(t, c)
	run, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: "chain", TaskQueue: queue}, chain, 70)
	require.NoError(t, err)
	require.NoError(t, run.Get(t.Context(), nil))

	var waits []time.Duration
	var scheduled time.Time
	for _, event := range history(t, c, "chain") {
		if kind := event.GetEventType(); kind == enumspb.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED {
			scheduled = event.GetEventTime().AsTime()
		} else if kind == enumspb.EVENT_TYPE_WORKFLOW_TASK_STARTED {
			waits = append(waits, event.GetEventTime().AsTime().Sub(scheduled))
		}
	}
	require.Len(t, waits, 71)
	late := waits[30:] // past the burst
	slices.Sort(late)
	require.Less(t, late[len(late)/2], 25*time.Millisecond, "median of %v", late)
}

// TestShortTimersAreShort fails at the server's default, where no timer is
// shorter than a second.
func TestShortTimersAreShort(t *testing.T) {
	c := dial(t, start(t, t.TempDir()))
	startWorker(t, c)
	run, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: "nap", TaskQueue: queue}, echoSleepEcho, 50*time.Millisecond)
	require.NoError(t, err)
	require.NoError(t, run.Get(t.Context(), nil))

	var started time.Time
	for _, event := range history(t, c, "nap") {
		if kind := event.GetEventType(); kind == enumspb.EVENT_TYPE_TIMER_STARTED {
			started = event.GetEventTime().AsTime()
		} else if kind == enumspb.EVENT_TYPE_TIMER_FIRED {
			took := event.GetEventTime().AsTime().Sub(started)
			require.GreaterOrEqual(t, took, 50*time.Millisecond)
			require.Less(t, took, 700*time.Millisecond)
			return
		}
	}
	require.Fail(t, "no timer fired")
}

// naps runs n short timers, each followed by an activity.
func naps(ctx workflow.Context, n int) error {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
	for range n {
		if err := workflow.Sleep(ctx, 20*time.Millisecond); err != nil {
			return err
		}
		if err := workflow.ExecuteActivity(ctx, echo, "x").Get(ctx, nil); err != nil {
			return err
		}
	}
	return nil
}

// TestStoppedWorkerLosesNoTask stops one of two workers while tasks flow. Without
// the polls being answered, a task goes to a dead poll and comes back after 10 s
// (a workflow task) or a minute (an activity).
func TestStoppedWorkerLosesNoTask(t *testing.T) {
	c := dial(t, start(t, t.TempDir()))
	newWorker := func(queue string) worker.Worker {
		w := worker.New(c, queue, worker.Options{WorkerStopTimeout: 10 * time.Second, StickyScheduleToStartTimeout: 2 * time.Second})
		w.RegisterWorkflow(naps)
		w.RegisterActivity(echo)
		require.NoError(t, w.Start())
		return w
	}
	for round := range 3 { // one stop has a fair chance to meet no task
		queue := fmt.Sprintf("round-%d", round)
		leaving := newWorker(queue)
		var runs []client.WorkflowRun
		for i := range 5 {
			run, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: fmt.Sprintf("%s-%d", queue, i), TaskQueue: queue}, naps, 20)
			require.NoError(t, err)
			runs = append(runs, run)
		}
		require.Eventually(t, func() bool { return len(history(t, c, runs[4].GetID())) > 15 }, 20*time.Second, 10*time.Millisecond)
		staying := newWorker(queue)
		leaving.Stop()
		for _, run := range runs {
			require.NoError(t, run.Get(t.Context(), nil))
			var last time.Time
			for _, event := range history(t, c, run.GetID()) {
				at := event.GetEventTime().AsTime()
				if !last.IsZero() {
					require.Less(t, at.Sub(last), 6*time.Second, "%s stood still before event %d, %s", run.GetID(), event.GetEventId(), event.GetEventType())
				}
				last = at
			}
		}
		staying.Stop()
	}
}

// TestKilledEngine has a process that runs an engine, a worker and a workflow
// killed without notice while the workflow's timer runs.
func TestKilledEngine(t *testing.T) {
	if dir := os.Getenv("EBB_TEST_KILLED_ENGINE"); dir != "" {
		s := start(t, dir)
		c := dial(t, s)
		startWorker(t, c)
		_, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: "op", TaskQueue: queue}, echoSleepEcho, 4*time.Second)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return len(history(t, c, "op")) >= 11 }, 20*time.Second, 10*time.Millisecond)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "sleeping"), nil, 0o600))
		<-t.Context().Done() // until it is killed
		return
	}
	if testing.Short() {
		t.Skip("-short: starts a Temporal server")
	}
	dir := filepath.Join(t.TempDir(), "odd %3f?#name") // a path that SQLite must get escaped
	require.NoError(t, os.Mkdir(dir, 0o700))
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledEngine$", "-test.timeout=60s")
	child.Env = append(os.Environ(), "EBB_TEST_KILLED_ENGINE="+dir)
	child.Stdout, child.Stderr = os.Stderr, os.Stderr
	require.NoError(t, child.Start())
	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(dir, "sleeping"))
		return err == nil
	}, 30*time.Second, 10*time.Millisecond)
	require.NoError(t, child.Process.Kill())
	require.Error(t, child.Wait())

	entries, err := os.ReadDir(filepath.Dir(dir))
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing is written beside the directory")

	c := dial(t, start(t, dir))
	before := history(t, c, "op")
	require.GreaterOrEqual(t, len(before), 11, "what was acknowledged is there")
	startWorker(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var result string
	require.NoError(t, c.GetWorkflow(ctx, "op", "").Get(ctx, &result))
	require.Equal(t, "after", result)
}

func TestWildcardHostIsReachedOnLoopback(t *testing.T) {
	s, err := Start(t.Context(), Options{Dir: t.TempDir(), Host: "0.0.0.0", UIPort: -1})
	require.NoError(t, err)
	t.Cleanup(s.Stop)
	require.Contains(t, s.Address(), "127.0.0.1:")
	_, err = engine.ID(t.Context(), dial(t, s), s.Namespace())
	require.NoError(t, err)
}

// patient waits for a word that an update brings.
func patient(ctx workflow.Context) (string, error) {
	var word string
	err := workflow.SetUpdateHandlerWithOptions(ctx, "say", func(_ workflow.Context, w string) (string, error) {
		word = w
		return "heard " + w, nil
	}, workflow.UpdateHandlerOptions{Validator: func(_ workflow.Context, w string) error {
		if w == "" {
			return fmt.Errorf("no word")
		}
		return nil
	}})
	if err != nil {
		return "", err
	}
	err = workflow.Await(ctx, func() bool { return word != "" })
	return word, err
}

func TestUpdatesWork(t *testing.T) {
	c := dial(t, start(t, t.TempDir()))
	w := worker.New(c, queue, worker.Options{})
	w.RegisterWorkflow(patient)
	require.NoError(t, w.Start())
	t.Cleanup(w.Stop)
	run, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: "patient", TaskQueue: queue}, patient)
	require.NoError(t, err)
	say := func(word string) (answer string, err error) {
		handle, err := c.UpdateWorkflow(t.Context(), client.UpdateWorkflowOptions{
			WorkflowID: "patient", UpdateName: "say", Args: []any{word}, WaitForStage: client.WorkflowUpdateStageCompleted,
		})
		if err != nil {
			return "", err
		}
		return answer, handle.Get(t.Context(), &answer)
	}
	_, err = say("")
	require.ErrorContains(t, err, "no word")
	answer, err := say("yes")
	require.NoError(t, err)
	require.Equal(t, "heard yes", answer)
	var result string
	require.NoError(t, run.Get(t.Context(), &result))
	require.Equal(t, "yes", result)
}
