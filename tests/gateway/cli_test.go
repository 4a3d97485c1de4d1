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

	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/internal/testbed"
	"ebb/internal/version"
)

// cliProcess is a process of the CLI that uses a gateway.
type cliProcess struct {
	*exec.Cmd
	out, errs *syncBuffer
	done      chan struct{}
}

// syncBuffer holds the output of a process; it may be read while the process runs.
type syncBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *syncBuffer) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

func (r *syncBuffer) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

// startCLI starts the CLI as a caller. It cannot reach the engine.
func (s *environment) startCLI(who, url string, args ...string) *cliProcess {
	s.t.Helper()
	binary, err := testbed.Binary("ebb")
	require.NoError(s.t, err)
	c := &cliProcess{Cmd: exec.CommandContext(s.t.Context(), binary, append(args, "--gateway", url)...), out: &syncBuffer{}, errs: &syncBuffer{}, done: make(chan struct{})} // #nosec G204 -- our own binary
	c.Stdout, c.Stderr, c.Env = c.out, c.errs, s.processEnv("127.0.0.1:1", "EBB_TOKEN="+s.tokens[who], "EBB_CONFIG="+s.path("none"))
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

// waitForExit waits for the end and returns the exit code.
func (c *cliProcess) waitForExit(t *testing.T, within time.Duration) int {
	t.Helper()
	select {
	case <-c.done:
		return c.ProcessState.ExitCode()
	case <-time.After(within):
		require.FailNow(t, "the command goes on", "%v after %s:\n%s\n%s", c.Args, within, c.out, c.errs)
		return -1
	}
}

// waitForRetry waits until the command has said that it does.
func (c *cliProcess) waitForRetry(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(c.errs.String(), retryingMessage) }, time.Minute, 10*time.Millisecond, "%s", c.errs)
}

// loggingOperation is an operation that no worker works on, so that it goes on for as long
// as a test wants, and whose log is written as a worker's recorder does.
type loggingOperation struct {
	*environment
	id          string
	offset      int64
	printed     []string // whole lines
	partialLine string   // the line that has not ended
}

func (s *environment) startLoggingOperation(id string) *loggingOperation {
	s.t.Helper()
	_, started, err := s.ops.Start(s.t.Context(), ops.Request{ID: id, Kind: operation.KindUpgrade, Cluster: "prod", Route: version.Route{Target: "1.37.2"}})
	require.NoError(s.t, err)
	require.True(s.t, started)
	return &loggingOperation{environment: s, id: id}
}

func (p *loggingOperation) writeOutput(text string) {
	p.t.Helper()
	o := operation.Output{Node: "cp1", Phase: "upgrade", Attempt: 1, Offset: p.offset, Size: int64(len(text)), Text: text}
	require.NoError(p.t, p.client.SignalWorkflow(p.t.Context(), p.id, "", operation.SignalOutput, o))
	p.offset += o.Size
	whole := strings.Split(p.partialLine+text, "\n")
	p.printed, p.partialLine = append(p.printed, whole[:len(whole)-1]...), whole[len(whole)-1]
}

// terminate ends the operation.
func (p *loggingOperation) terminate() {
	p.t.Helper()
	require.NoError(p.t, p.client.TerminateWorkflow(context.WithoutCancel(p.t.Context()), p.id, "", "the test is over"))
}

// logLines returns the lines of `ebb logs`, without what stands before each.
func logLines(out string) (lines []string) {
	for line := range strings.Lines(out) {
		_, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " | ")
		lines = append(lines, text)
	}
	return lines
}
