package infra

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/config"
)

var w1 = Machine{
	Cluster: "prod", Node: "w1", UID: "u-1", ProviderID: "cloudstack:///vm-1", MachineID: "abc", Addresses: []string{"10.0.0.4", "fd00::4"},
}

// shell returns an exec provider that runs a shell script; $1 is a directory of the test.
func shell(t *testing.T, timeout time.Duration, script string) (Provider, string) {
	t.Helper()
	dir := t.TempDir()
	p, err := New(config.Infrastructure{
		Provider: "exec", Command: []string{"/bin/sh", "-c", script, "sh", dir}, Timeout: config.Duration(timeout),
	})
	require.NoError(t, err)
	return p, dir
}

const prefix = "infrastructure command /bin/sh, "

func TestNew(t *testing.T) {
	for _, provider := range []string{"", "none"} {
		p, err := New(config.Infrastructure{Provider: provider})
		require.NoError(t, err)
		s, err := p.State(t.Context(), w1)
		require.NoError(t, err)
		require.Equal(t, Unknown, s)
		require.NoError(t, p.Destroy(t.Context(), w1))
	}
	_, err := New(config.Infrastructure{Provider: "cloud"})
	require.EqualError(t, err, `infrastructure.provider: "cloud" is not known: use none, exec or cloudstack`)
	_, err = New(config.Infrastructure{Provider: "exec"})
	require.EqualError(t, err, "infrastructure.command is required with provider exec: the program and its arguments")
}

func TestExecRequest(t *testing.T) {
	t.Setenv("EBB_TEST_INHERITED", "yes")
	p, dir := shell(t, time.Minute, `cat > "$1/request"; printf %s "$EBB_TEST_INHERITED" > "$1/env"; echo '{"state":"stopped"}'`)
	s, err := p.State(t.Context(), w1)
	require.NoError(t, err)
	require.Equal(t, Stopped, s)
	const machine = `"machine":{"cluster":"prod","node":"w1","uid":"u-1","providerID":"cloudstack:///vm-1","machineID":"abc","addresses":["10.0.0.4","fd00::4"]}}`
	require.JSONEq(t, `{"version":1,"action":"state",`+machine, read(t, dir, "request"))
	require.Equal(t, "yes", read(t, dir, "env"))

	require.NoError(t, p.Destroy(t.Context(), w1))
	require.JSONEq(t, `{"version":1,"action":"destroy",`+machine, read(t, dir, "request"))
}

func TestExecAnswers(t *testing.T) {
	const want = `stdout must be one JSON object such as {"state":"running"}`
	tests := []struct {
		name, script string
		state        State
		err          string // of State, after the prefix
		destroyErr   string // of Destroy, after the prefix
	}{
		{"running", `echo '{"state":"running"}'`, Running, "", ""},
		{"gone", `printf ' {"state":"gone"}'`, Gone, "", ""},
		{"unknown", `echo '{"state":"unknown"}'`, Unknown, "", ""},
		{"silent", `:`, "", want + ", it is empty", ""},
		{"blank", `echo; echo`, "", want + ", it is empty", ""},
		{"other state", `echo '{"state":"paused"}'`, "", `state must be running, stopped, gone or unknown, not "paused"`, `state must be running, stopped, gone or unknown, not "paused"`},
		{"no state", `echo '{}'`, "", `state must be running, stopped, gone or unknown, not ""`, `state must be running, stopped, gone or unknown, not ""`},
		{"two objects", `echo '{"state":"gone"}{"state":"gone"}'`, "", want + ", there is something after it", want + ", there is something after it"},
		{"log line", `echo deleting; echo '{"state":"gone"}'`, "", want, want},
		{"null", `echo null`, "", want, want},
		{"unknown field", `echo '{"state":"gone","why":1}'`, "", want + `: json: unknown field "why"`, want + `: json: unknown field "why"`},
		{"cut off", `echo '{"state":'`, "", want + ": unexpected EOF", want + ": unexpected EOF"},
		{"too much", `head -c 70000 /dev/zero`, "", "printed more than 65536 bytes on stdout", "printed more than 65536 bytes on stdout"},
		{"failed", `echo '{"state":"gone"}'; echo "no such VM" >&2; exit 3`, "", "exit status 3: no such VM", "exit status 3: no such VM"},
		{"failed silently", `exit 1`, "", "exit status 1", "exit status 1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, _ := shell(t, time.Minute, tt.script)
			s, err := p.State(t.Context(), w1)
			if tt.err == "" {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, prefix+"state of the machine of node w1: "+tt.err)
			}
			require.Equal(t, tt.state, s)
			err = p.Destroy(t.Context(), w1)
			if tt.destroyErr == "" {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, prefix+"destroy of the machine of node w1: "+tt.destroyErr)
			}
		})
	}
}

func TestExecKeepsTheEndOfStderr(t *testing.T) {
	p, _ := shell(t, time.Minute, `head -c 100000 /dev/zero | tr '\0' x >&2; echo "the reason" >&2; exit 1`)
	err := p.Destroy(t.Context(), w1)
	require.ErrorContains(t, err, "xxxthe reason")
	require.Equal(t, maxErrorText-len("the reason\n"), strings.Count(err.Error(), "x")-strings.Count(prefix+"exit", "x"))
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
}

func TestExecProgramNotFound(t *testing.T) {
	for _, program := range []string{"ebb-test-no-such-program", "/nowhere/vmctl"} {
		p, err := New(config.Infrastructure{Provider: "exec", Command: []string{program}})
		require.NoError(t, err)
		_, err = p.State(t.Context(), w1)
		require.ErrorContains(t, err, "infrastructure command "+program+", state of the machine of node w1: "+
			"program not found: install it on the worker or correct infrastructure.command: ")
	}
	path := filepath.Join(t.TempDir(), "vm")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	p, err := New(config.Infrastructure{Provider: "exec", Command: []string{path}})
	require.NoError(t, err)
	require.ErrorIs(t, p.Destroy(t.Context(), w1), os.ErrPermission)
}

// stubborn ignores SIGTERM and so does the child that it starts; both note their pids.
const stubborn = `trap '' TERM; echo "vm is locked" >&2; (trap '' TERM; exec sleep 300) & echo $! > "$1/child.new"; mv "$1/child.new" "$1/child"; wait`

func TestExecTimeoutKillsTheGroup(t *testing.T) {
	p, dir := shell(t, 700*time.Millisecond, stubborn)
	begin := time.Now()
	_, err := p.State(t.Context(), w1)
	require.EqualError(t, err, prefix+"state of the machine of node w1: "+
		"no answer within 700ms (infrastructure.timeout), killed: context deadline exceeded: vm is locked")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, time.Since(begin), 10*time.Second)
	requireDead(t, dir)
}

func TestExecCancelKillsTheGroup(t *testing.T) {
	p, dir := shell(t, time.Minute, stubborn)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() { failed <- p.Destroy(ctx, w1) }()
	require.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(dir, "child")); return err == nil }, 20*time.Second, 10*time.Millisecond)
	cancel()
	err := <-failed
	require.EqualError(t, err, prefix+"destroy of the machine of node w1: stopped: context canceled")
	require.ErrorIs(t, err, context.Canceled)
	requireDead(t, dir)
}

func TestExecDoesNotWaitForWhatItLeavesBehind(t *testing.T) {
	p, dir := shell(t, time.Minute, `sleep 300 & echo $! > "$1/child"; echo '{"state":"running"}'`)
	begin := time.Now()
	s, err := p.State(t.Context(), w1)
	require.NoError(t, err)
	require.Equal(t, Running, s)
	require.Less(t, time.Since(begin), 30*time.Second)
	requireDead(t, dir)
}

func TestExecThatDoesNotReadItsInput(t *testing.T) {
	big := w1
	big.Addresses = []string{strings.Repeat("x", 1<<20)} // more than a pipe holds
	p, _ := shell(t, time.Minute, `exec 0<&-; echo '{"state":"running"}'`)
	s, err := p.State(t.Context(), big)
	require.NoError(t, err)
	require.Equal(t, Running, s)
}

func TestMachineJSON(t *testing.T) {
	out, err := json.Marshal(Machine{Cluster: "c", Node: "n"})
	require.NoError(t, err)
	require.JSONEq(t, `{"cluster":"c","node":"n"}`, string(out))
}

func TestFakeProvider(t *testing.T) {
	var f FakeProvider
	s, err := f.State(t.Context(), w1)
	require.NoError(t, err)
	require.Equal(t, Unknown, s)

	f.SetState("w1", Running)
	down := errors.New("down")
	f.FailState("w1", down)
	f.FailDestroy("w1", down, down)
	_, err = f.State(t.Context(), w1)
	require.ErrorIs(t, err, down)
	s, err = f.State(t.Context(), w1)
	require.NoError(t, err)
	require.Equal(t, Running, s)
	require.Len(t, f.StateCalls(), 3)

	require.ErrorIs(t, f.Destroy(t.Context(), w1), down)
	require.ErrorIs(t, f.Destroy(t.Context(), w1), down)
	require.Empty(t, f.Destroyed())
	require.NoError(t, f.Destroy(t.Context(), w1))
	require.Equal(t, []Machine{w1}, f.Destroyed())
	s, err = f.State(t.Context(), w1)
	require.NoError(t, err)
	require.Equal(t, Gone, s)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, f.Destroy(ended, w1), context.Canceled)
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	require.NoError(t, err)
	return string(data)
}

// requireDead waits until the child that a script noted is no running process any more.
func requireDead(t *testing.T, dir string) {
	t.Helper()
	pid := strings.TrimSpace(read(t, dir, "child"))
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			return true
		}
		_, after, _ := strings.Cut(string(stat), ") ")
		return strings.HasPrefix(after, "Z") // killed, and waits for its parent to take notice
	}, 20*time.Second, 10*time.Millisecond, "process %s is still running", pid)
}
