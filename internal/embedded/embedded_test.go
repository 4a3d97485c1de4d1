package embedded

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"go.uber.org/zap"

	"ebb/internal/engine"
)

const queue = "test"

func start(t *testing.T, dir string) *Server {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: starts a Temporal server")
	}
	s, err := Start(t.Context(), Options{Dir: dir, UIPort: -1, Log: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(s.Stop)
	return s
}

func dial(t testing.TB, s *Server) client.Client {
	t.Helper()
	c, err := engine.Dial(context.Background(), zap.NewNop(), engine.Options{Address: s.Address(), Namespace: s.Namespace()})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func echo(_ context.Context, text string) (string, error) { return text, nil }

// echoSleepEcho runs an activity, sleeps, and runs it again.
func echoSleepEcho(ctx workflow.Context, d time.Duration) (string, error) {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
	if err := workflow.ExecuteActivity(ctx, echo, "before").Get(ctx, nil); err != nil {
		return "", err
	}
	if err := workflow.Sleep(ctx, d); err != nil {
		return "", err
	}
	var text string
	err := workflow.ExecuteActivity(ctx, echo, "after").Get(ctx, &text)
	return text, err
}

func startWorker(t testing.TB, c client.Client) {
	t.Helper()
	w := worker.New(c, queue, worker.Options{})
	w.RegisterWorkflow(echoSleepEcho)
	w.RegisterWorkflow(chain)
	w.RegisterActivity(echo)
	require.NoError(t, w.Start())
	t.Cleanup(w.Stop)
}

func TestWorkflowSurvivesARestartOfTheEngine(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	first := start(t, dir)
	c := dial(t, first)
	w := worker.New(c, queue, worker.Options{})
	w.RegisterWorkflow(echoSleepEcho)
	w.RegisterActivity(echo)
	require.NoError(t, w.Start())
	run, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: "op-1", TaskQueue: queue}, echoSleepEcho, 2*time.Second)
	require.NoError(t, err)
	require.Eventually(t, func() bool { // the timer is running
		history := c.GetWorkflowHistory(t.Context(), "op-1", run.GetRunID(), false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
		for history.HasNext() {
			if event, err := history.Next(); err == nil && event.GetEventType() == enumspb.EVENT_TYPE_TIMER_STARTED {
				return true
			}
		}
		return false
	}, 20*time.Second, 50*time.Millisecond)
	before, err := engine.ID(t.Context(), c, first.Namespace())
	require.NoError(t, err)
	w.Stop()
	first.Stop()

	second := start(t, dir)
	c = dial(t, second)
	after, err := engine.ID(t.Context(), c, second.Namespace())
	require.NoError(t, err)
	require.Equal(t, before, after, "it is the same engine")
	startWorker(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var result string
	require.NoError(t, c.GetWorkflow(ctx, "op-1", "").Get(ctx, &result))
	require.Equal(t, "after", result)
}

func TestFilesAreForTheOwnerOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	start(t, dir)
	for path, mode := range map[string]os.FileMode{"": 0o700, "temporal.db": 0o600, "lock": 0o600} {
		info, err := os.Stat(filepath.Join(dir, path))
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode().Perm(), path)
	}
}

func TestFileInUseNamesTheProcess(t *testing.T) {
	dir := t.TempDir()
	holder := exec.CommandContext(t.Context(), "flock", "-x", filepath.Join(dir, "lock"), "sh", "-c", "echo $$ > "+filepath.Join(dir, "lock")+"; echo locked; exec cat")
	stdin, err := holder.StdinPipe()
	require.NoError(t, err)
	stdout, err := holder.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, holder.Start())
	t.Cleanup(func() { _ = stdin.Close(); _ = holder.Wait() })
	_, err = io.ReadFull(stdout, make([]byte, len("locked\n")))
	require.NoError(t, err)

	_, err = Start(t.Context(), Options{Dir: dir, UIPort: -1})

	require.ErrorContains(t, err, "is in use by process ")
	require.ErrorContains(t, err, "--state-dir")
}

func TestTakenPortIsNamed(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	taken := l.Addr().(*net.TCPAddr).Port

	_, err = Start(t.Context(), Options{Dir: t.TempDir(), Port: taken, UIPort: -1})
	require.ErrorContains(t, err, "port "+strconv.Itoa(taken))
	require.ErrorContains(t, err, "--port")

	_, err = Start(t.Context(), Options{Dir: t.TempDir(), UIPort: taken})
	require.ErrorContains(t, err, "--ui-port")
}

func TestWebUIAnswers(t *testing.T) {
	s, err := Start(t.Context(), Options{Dir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(s.Stop)
	for _, path := range []string{"/", "/api/v1/namespaces/default/workflows"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.UI()+path, nil)
		require.NoError(t, err)
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		_ = response.Body.Close()
		require.Equal(t, http.StatusOK, response.StatusCode, path)
	}
}

func TestSchedulesWork(t *testing.T) {
	c := dial(t, start(t, t.TempDir()))
	startWorker(t, c)
	_, err := c.ScheduleClient().Create(t.Context(), client.ScheduleOptions{
		ID:     "every-second",
		Spec:   client.ScheduleSpec{Intervals: []client.ScheduleIntervalSpec{{Every: time.Second}}},
		Action: &client.ScheduleWorkflowAction{ID: "tick", Workflow: echoSleepEcho, Args: []any{time.Millisecond}, TaskQueue: queue},
	})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		d, err := c.ScheduleClient().GetHandle(t.Context(), "every-second").Describe(t.Context())
		return err == nil && len(d.Info.RecentActions) > 0
	}, 30*time.Second, 100*time.Millisecond)
}

// chain runs n activities one after another.
func chain(ctx workflow.Context, n int) error {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
	for range n {
		if err := workflow.ExecuteActivity(ctx, echo, "x").Get(ctx, nil); err != nil {
			return err
		}
	}
	return nil
}

// BenchmarkActivity is the cost of one step of a workflow that runs alone.
func BenchmarkActivity(b *testing.B) {
	s, err := Start(b.Context(), Options{Dir: b.TempDir(), UIPort: -1})
	require.NoError(b, err)
	defer s.Stop()
	c := dial(b, s)
	startWorker(b, c)
	b.ResetTimer()
	run, err := c.ExecuteWorkflow(b.Context(), client.StartWorkflowOptions{TaskQueue: queue}, chain, b.N)
	require.NoError(b, err)
	require.NoError(b, run.Get(b.Context(), nil))
}
