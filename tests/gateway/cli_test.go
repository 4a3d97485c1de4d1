package gateway

import (
	"bytes"
	"context"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/activities"
	"ebb/internal/ops"
	"ebb/internal/testbed"
	"ebb/workflows"
)

// command is a run of the CLI through a gateway.
type command struct {
	*exec.Cmd
	out, errs *record
	done      chan struct{}
}

// record is what a process has written so far.
type record struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

// ebb starts the CLI as a caller. It cannot reach the engine.
func (s *stage) ebb(who, url string, args ...string) *command {
	s.t.Helper()
	binary, err := testbed.Binary("ebb")
	require.NoError(s.t, err)
	c := &command{Cmd: exec.CommandContext(s.t.Context(), binary, append(args, "--gateway", url)...), out: &record{}, errs: &record{}, done: make(chan struct{})} // #nosec G204 -- our own binary
	c.Stdout, c.Stderr, c.Env = c.out, c.errs, s.environment("127.0.0.1:1", "EBB_TOKEN="+s.tokens[who], "EBB_CONFIG="+s.path("none"))
	require.NoError(s.t, c.Start())
	go func() {
		defer close(c.done)
		_ = c.Wait() // how it ended is in ProcessState
	}()
	s.t.Cleanup(func() {
		_ = c.Process.Kill()
		<-c.done
	})
	return c
}

// ends waits for the end and returns the exit code.
func (c *command) ends(t *testing.T, within time.Duration) int {
	t.Helper()
	select {
	case <-c.done:
		return c.ProcessState.ExitCode()
	case <-time.After(within):
		require.FailNow(t, "the command goes on", "%v after %s:\n%s\n%s", c.Args, within, c.out, c.errs)
		return -1
	}
}

// retries waits until the command has said that it does.
func (c *command) retries(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(c.errs.String(), retrying) }, time.Minute, 10*time.Millisecond, "%s", c.errs)
}

// printer is an operation that no worker works on, so that it goes on for as long
// as a test wants, and whose log is written as a worker's recorder does.
type printer struct {
	*stage
	id      string
	offset  int64
	printed []string // whole lines
	open    string   // the line that has not ended
}

func (s *stage) printer(id string) *printer {
	s.t.Helper()
	_, started, err := s.ops.Start(s.t.Context(), ops.Request{ID: id, Kind: workflows.KindUpgrade, Cluster: "prod", Target: "1.37.2"})
	require.NoError(s.t, err)
	require.True(s.t, started)
	return &printer{stage: s, id: id}
}

func (p *printer) prints(text string) {
	p.t.Helper()
	o := activities.Output{Node: "cp1", Phase: "upgrade", Attempt: 1, Offset: p.offset, Size: int64(len(text)), Text: text}
	require.NoError(p.t, p.client.SignalWorkflow(p.t.Context(), p.id, "", activities.SignalOutput, o))
	p.offset += o.Size
	whole := strings.Split(p.open+text, "\n")
	p.printed, p.open = append(p.printed, whole[:len(whole)-1]...), whole[len(whole)-1]
}

// end ends the operation.
func (p *printer) end() {
	p.t.Helper()
	require.NoError(p.t, p.client.TerminateWorkflow(context.WithoutCancel(p.t.Context()), p.id, "", "the test is over"))
}

// linesOf are the lines of `ebb logs`, without what stands before each.
func linesOf(out string) (lines []string) {
	for line := range strings.Lines(out) {
		_, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " | ")
		lines = append(lines, text)
	}
	return lines
}
