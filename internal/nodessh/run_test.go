package nodessh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func newRun(t *testing.T, script string) Run {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "runs", "op-1-stage")
	t.Cleanup(func() { killRun(dir) })
	return Run{Dir: dir, Script: []byte(script)}
}

// killRun leaves no process of a failed test behind.
func killRun(dir string) {
	if group, err := processGroup(dir); err == nil {
		_ = syscall.Kill(-group, syscall.SIGKILL)
	}
}

func processGroup(dir string) (int, error) {
	text, err := os.ReadFile(filepath.Join(dir, "pid"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.Fields(string(text))[0])
}

func follow(t *testing.T, c *Client, dir string, offset int64) (string, RunStatus) {
	t.Helper()
	var out bytes.Buffer
	status, err := c.Follow(contextWithTimeout(t, 60*time.Second), dir, offset, func(chunk []byte) error {
		out.Write(chunk)
		return nil
	})
	require.NoError(t, err)
	return out.String(), status
}

func TestRun(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *testServer) {
		c := mustDial(t, s.target(t))
		run := newRun(t, `echo "hello $NAME"; echo "in $EBB_RUN_DIR" >&2; cat; umask; printf 'no newline'; exit 7`)
		run.Env = map[string]string{"NAME": "it's $HOME; \"x\"\nsecond line"}

		status, err := c.Status(t.Context(), run.Dir)
		require.NoError(t, err)
		require.Equal(t, RunStatus{State: RunAbsent}, status)

		require.NoError(t, c.Start(t.Context(), run))
		out, status := follow(t, c, run.Dir, 0)
		want := "hello it's $HOME; \"x\"\nsecond line\nin " + run.Dir + "\n0022\nno newline"
		require.Equal(t, want, out)
		require.Equal(t, RunStatus{State: RunExited, ExitCode: 7, Size: int64(len(want))}, status)

		out, _ = follow(t, c, run.Dir, 6)
		require.Equal(t, want[6:], out)

		require.NoError(t, c.Start(t.Context(), run), "a run that has ended is left alone")
		again, err := c.Status(t.Context(), run.Dir)
		require.NoError(t, err)
		require.Equal(t, status, again)

		info, err := os.Stat(run.Dir)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
		info, err = os.Stat(filepath.Join(run.Dir, "env"))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	})
}

func TestRunInLoginDirectory(t *testing.T) {
	s := startServer(t, serverOptions{})
	c := mustDial(t, s.target(t))
	require.NoError(t, c.Start(t.Context(), Run{Dir: "ebb/runs/op 'x'", Script: []byte("pwd")}))
	out, status := follow(t, c, "ebb/runs/op 'x'", 0)
	require.Equal(t, RunExited, status.State)
	require.Equal(t, filepath.Join(s.home, "ebb/runs/op 'x'")+"\n", out)
}

func TestRunUsesItsInterpreter(t *testing.T) {
	s := startServer(t, serverOptions{})
	c := mustDial(t, s.target(t))
	run := newRun(t, "#!/usr/bin/env bash\necho \"${BASH_VERSION:+bash}\"\n")
	require.NoError(t, c.Start(t.Context(), run))
	out, _ := follow(t, c, run.Dir, 0)
	require.Equal(t, "bash\n", out)
}

func TestOldRunsAreRemoved(t *testing.T) {
	s := startServer(t, serverOptions{})
	c := mustDial(t, s.target(t))
	run := newRun(t, "true")
	runs := filepath.Dir(run.Dir)
	long := time.Now().Add(-31 * 24 * time.Hour)
	makeRun := func(name, exit string, at time.Time) string {
		dir := filepath.Join(runs, name)
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "started"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "lock"), nil, 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "exit"), []byte(exit), 0o600))
		require.NoError(t, os.Chtimes(filepath.Join(dir, "exit"), at, at))
		return dir
	}
	old, recent, unfinished := makeRun("old", "0\n", long), makeRun("recent", "0\n", time.Now()), makeRun("unfinished", "", long)
	notes := filepath.Join(runs, ".done-op-0")
	require.NoError(t, os.WriteFile(notes, nil, 0o600))
	require.NoError(t, os.Chtimes(notes, long, long))
	other := filepath.Join(runs, "not-a-run")
	require.NoError(t, os.MkdirAll(other, 0o700))
	require.NoError(t, os.Chtimes(other, long, long))

	require.NoError(t, c.Start(t.Context(), run))
	follow(t, c, run.Dir, 0)

	require.NoDirExists(t, old)
	require.NoFileExists(t, notes)
	for _, kept := range []string{recent, unfinished, other, run.Dir} {
		require.DirExists(t, kept)
	}
}

func TestStartTwiceAtOnceRunsOnce(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *testServer) {
		counter := filepath.Join(t.TempDir(), "counter")
		run := newRun(t, "echo x >>"+counter+"; sleep 0.5; echo done")
		target := s.target(t)
		var group sync.WaitGroup
		failures := make(chan error, 6)
		for range 6 {
			c := mustDial(t, target)
			group.Go(func() { failures <- c.Start(t.Context(), run) })
		}
		group.Wait()
		for range 6 {
			require.NoError(t, <-failures)
		}
		out, status := follow(t, mustDial(t, target), run.Dir, 0)
		require.Equal(t, RunExited, status.State)
		require.Equal(t, "done\n", out)
		content, err := os.ReadFile(counter)
		require.NoError(t, err)
		require.Equal(t, "x\n", string(content))
	})
}

// A launch that was lost left a directory without the mark; it is simply repeated.
func TestStartAfterLostLaunch(t *testing.T) {
	s := startServer(t, serverOptions{})
	c := mustDial(t, s.target(t))
	run := newRun(t, "echo ran")
	require.NoError(t, os.MkdirAll(run.Dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(run.Dir, "script"), []byte("half of"), 0o600))
	require.NoError(t, c.Start(t.Context(), run))
	out, _ := follow(t, c, run.Dir, 0)
	require.Equal(t, "ran\n", out)
}

func TestReattachSeesEveryByteOnce(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *testServer) {
		// 5 MB of lines that are all different, and bytes that are no text.
		run := newRun(t, `i=0; while [ $i -lt 50 ]; do seq $((i*15000)) $((i*15000+14999)); i=$((i+1)); done; printf 'end\000\377'`)
		var want bytes.Buffer
		for i := range 750_000 {
			fmt.Fprintln(&want, i)
		}
		want.WriteString("end\x00\xff")

		p := startFaultyProxy(t, s.addr)
		target := p.targetThrough(t, s)
		require.NoError(t, mustDial(t, s.target(t)).Start(t.Context(), run))
		var got bytes.Buffer
		cuts := 0
		for {
			p.bytesLeft.Store(1_100_000)
			c, err := Dial(t.Context(), target)
			require.NoError(t, err)
			status, err := c.Follow(contextWithTimeout(t, 60*time.Second), run.Dir, int64(got.Len()), func(chunk []byte) error {
				got.Write(chunk)
				return nil
			})
			_ = c.Close()
			if err == nil {
				require.Equal(t, RunStatus{State: RunExited, Size: int64(want.Len())}, status)
				break
			}
			var transport *TransportError
			require.ErrorAs(t, err, &transport)
			require.False(t, Permanent(err))
			cuts++
			require.Less(t, cuts, 50)
		}
		require.Greater(t, cuts, 2)
		require.True(t, bytes.Equal(want.Bytes(), got.Bytes()), "the output differs")
	})
}

func TestRunOutlivesConnection(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *testServer) {
		gate := filepath.Join(t.TempDir(), "gate")
		run := newRun(t, "echo first; until [ -e "+gate+" ]; do sleep 0.05; done; echo second")
		c := mustDial(t, s.target(t))
		require.NoError(t, c.Start(t.Context(), run))
		stop := errors.New("seen enough")
		_, err := c.Follow(t.Context(), run.Dir, 0, func(chunk []byte) error {
			require.Equal(t, "first\n", string(chunk))
			return stop
		})
		require.ErrorIs(t, err, stop)
		require.NoError(t, c.Close())

		c = mustDial(t, s.target(t))
		status, err := c.Status(t.Context(), run.Dir)
		require.NoError(t, err)
		require.Equal(t, RunStatus{State: RunRunning, Size: 6}, status)
		require.NoError(t, os.WriteFile(gate, nil, 0o600))
		out, status := follow(t, c, run.Dir, 6)
		require.Equal(t, "second\n", out)
		require.Equal(t, RunExited, status.State)
	})
}

func TestKilledRunIsLost(t *testing.T) {
	s := startServer(t, serverOptions{})
	c := mustDial(t, s.target(t))
	run := newRun(t, "echo begun; sleep 60")
	require.NoError(t, c.Start(t.Context(), run))
	require.Eventually(t, func() bool {
		status, err := c.Status(t.Context(), run.Dir)
		return err == nil && status.Size == 6
	}, time.Minute, 20*time.Millisecond, "the script has begun")
	group, err := processGroup(run.Dir)
	require.NoError(t, err)

	require.NoError(t, syscall.Kill(group, syscall.SIGKILL))
	require.Never(t, func() bool {
		status, err := c.Status(t.Context(), run.Dir)
		return err != nil || status.State != RunRunning
	}, 500*time.Millisecond, 50*time.Millisecond, "as long as the script is alive nothing may start in its place")

	require.NoError(t, syscall.Kill(-group, syscall.SIGKILL))
	out, status := follow(t, c, run.Dir, 0)
	require.Equal(t, RunLost, status.State)
	require.Equal(t, "begun\n", out)
	require.NoError(t, c.Start(t.Context(), run), "a lost run is left alone")
	status, err = c.Status(t.Context(), run.Dir)
	require.NoError(t, err)
	require.Equal(t, RunLost, status.State)
}

// After a reboot the process number of the run belongs to somebody else.
func TestRunOfAnEarlierBootIsLost(t *testing.T) {
	s := startServer(t, serverOptions{})
	c := mustDial(t, s.target(t))
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "started"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "lock"), nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "pid"), fmt.Appendf(nil, "%d another-boot\n", syscall.Getpgrp()), 0o600))
	status, err := c.Status(t.Context(), dir)
	require.NoError(t, err)
	require.Equal(t, RunLost, status.State)
}

func TestStop(t *testing.T) {
	cases := []struct {
		name, script string
		grace        time.Duration
		code         int
		output       string
	}{
		{"ends on TERM", "echo go; sleep 60", 20 * time.Second, 143, "go\n"},
		{"cleans up once on TERM", "trap 'echo bye; exit 9' TERM; echo go; sleep 60 & wait", 20 * time.Second, 9, "go\nbye\n"},
		{"ignores TERM", "trap '' TERM; echo go; sleep 60", time.Second, 137, "go\n"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			onBothServers(t, func(t *testing.T, s *testServer) {
				c := mustDial(t, s.target(t))
				run := newRun(t, tc.script)
				require.NoError(t, c.Start(t.Context(), run))
				require.Eventually(t, func() bool {
					status, err := c.Status(t.Context(), run.Dir)
					return err == nil && status.Size == 3
				}, 10*time.Second, 20*time.Millisecond)
				group, err := processGroup(run.Dir)
				require.NoError(t, err)

				status, err := c.Stop(contextWithTimeout(t, 30*time.Second), run.Dir, tc.grace)
				require.NoError(t, err)
				require.Equal(t, RunStatus{State: RunExited, ExitCode: tc.code, Size: int64(len(tc.output))}, status)
				require.ErrorIs(t, syscall.Kill(-group, 0), syscall.ESRCH, "nothing of the run is left")
				out, _ := follow(t, c, run.Dir, 0)
				require.Equal(t, tc.output, out)

				again, err := c.Stop(t.Context(), run.Dir, tc.grace)
				require.NoError(t, err)
				require.Equal(t, status, again)
			})
		})
	}
}

func TestStopOfNothing(t *testing.T) {
	c := mustDial(t, startServer(t, serverOptions{}).target(t))
	status, err := c.Stop(t.Context(), "nowhere", time.Second)
	require.NoError(t, err)
	require.Equal(t, RunAbsent, status.State)
	out, status := follow(t, c, "nowhere", 0)
	require.Empty(t, out)
	require.Equal(t, RunAbsent, status.State)
}

func TestBackgroundChildDoesNotHoldTheRun(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *testServer) {
		c := mustDial(t, s.target(t))
		run := newRun(t, "sleep 30 & echo $!; exit 3")
		began := time.Now()
		require.NoError(t, c.Start(t.Context(), run))
		out, status := follow(t, c, run.Dir, 0)
		require.Less(t, time.Since(began), 10*time.Second)
		require.Equal(t, RunExited, status.State)
		require.Equal(t, 3, status.ExitCode)
		child, err := strconv.Atoi(strings.TrimSpace(out))
		require.NoError(t, err)
		require.NoError(t, syscall.Kill(child, 0), "the child goes on")
	})
}

func TestFollowEndsWithContext(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *testServer) {
		c := mustDial(t, s.target(t))
		run := newRun(t, "sleep 60")
		require.NoError(t, c.Start(t.Context(), run))
		_, err := c.Follow(contextWithTimeout(t, 300*time.Millisecond), run.Dir, 0, func([]byte) error { return nil })
		require.ErrorIs(t, err, context.DeadlineExceeded)
		status, err := c.Status(t.Context(), run.Dir)
		require.NoError(t, err)
		require.Equal(t, RunRunning, status.State)
	})
}

func TestStartSaysWhatTheNodeSays(t *testing.T) {
	c := mustDial(t, startServer(t, serverOptions{}).target(t))
	file := writeFile(t, "file", "", 0o600)
	err := c.Start(t.Context(), Run{Dir: file + "/run", Script: []byte("true")})
	var runErr *RunError
	require.ErrorAs(t, err, &runErr)
	require.Contains(t, err.Error(), "w1")
	require.Contains(t, err.Error(), "cannot make the run directory")

	require.ErrorContains(t, c.Start(t.Context(), Run{Dir: "x", Env: map[string]string{"A B": ""}}), "environment variable")
	require.ErrorContains(t, c.Start(t.Context(), Run{Dir: ""}), "run directory")
}

func TestSudo(t *testing.T) {
	sudo := func(body string) string {
		return filepath.Dir(writeFile(t, "sudo", "#!/bin/sh\n"+body, 0o755))
	}
	t.Run("works", func(t *testing.T) {
		s := startServer(t, serverOptions{path: sudo(`[ "$1" = -n ] || exit 9; shift; AS_ROOT=yes exec env AS_ROOT=yes "$@"`)})
		target := s.target(t)
		target.Sudo = true
		c := mustDial(t, target)
		out, _, code, err := c.Exec(t.Context(), "echo $AS_ROOT")
		require.NoError(t, err)
		require.Zero(t, code)
		require.Equal(t, "yes\n", out)
		run := newRun(t, "echo root $AS_ROOT")
		require.NoError(t, c.Start(t.Context(), run))
		out, _ = follow(t, c, run.Dir, 0)
		require.Equal(t, "root yes\n", out)
	})
	t.Run("wants a password", func(t *testing.T) {
		s := startServer(t, serverOptions{path: sudo("echo 'sudo: a password is required' >&2; exit 1")})
		target := s.target(t)
		target.Sudo = true
		c := mustDial(t, target)
		err := c.Start(t.Context(), newRun(t, "true"))
		var sudoErr *SudoError
		require.ErrorAs(t, err, &sudoErr)
		require.True(t, Permanent(err))
		_, err = c.Follow(t.Context(), "x", 0, func([]byte) error { return nil })
		require.ErrorAs(t, err, &sudoErr)
		_, stderr, code, err := c.Exec(t.Context(), "true")
		require.NoError(t, err)
		require.Equal(t, 1, code)
		require.Contains(t, stderr, "a password is required")
	})
}

// The script of an operation that was terminated runs on; that of the next one
// waits for its end.
func TestOneScriptAtATimeOnAMachine(t *testing.T) {
	s := startServer(t, serverOptions{})
	c := mustDial(t, s.target(t))
	runs, gate := filepath.Join(t.TempDir(), "runs"), filepath.Join(t.TempDir(), "gate")
	first := Run{Dir: filepath.Join(runs, "op-1"), Script: []byte("echo first begins; until [ -e " + gate + " ]; do sleep 0.05; done; echo first ends; date +%s%N >../first")}
	second := Run{Dir: filepath.Join(runs, "op-2"), Script: []byte("date +%s%N >../second")}
	for _, run := range []Run{first, second} {
		t.Cleanup(func() { killRun(run.Dir) })
	}
	require.NoError(t, c.Start(t.Context(), first))
	require.Eventually(t, func() bool {
		out, err := os.ReadFile(filepath.Join(first.Dir, "output"))
		return err == nil && string(out) == "first begins\n"
	}, 20*time.Second, 20*time.Millisecond)
	require.NoError(t, c.Start(t.Context(), second))
	require.Eventually(t, func() bool {
		out, err := os.ReadFile(filepath.Join(second.Dir, "output"))
		return err == nil && strings.Contains(string(out), "waiting for another run on this machine")
	}, 20*time.Second, 20*time.Millisecond)
	require.NoFileExists(t, filepath.Join(runs, "second"))
	require.NoError(t, os.WriteFile(gate, nil, 0o600))

	_, status := follow(t, c, second.Dir, 0)
	require.Equal(t, RunExited, status.State)
	require.Zero(t, status.ExitCode)
	before, err := os.ReadFile(filepath.Join(runs, "first"))
	require.NoError(t, err)
	after, err := os.ReadFile(filepath.Join(runs, "second"))
	require.NoError(t, err)
	require.Less(t, string(before), string(after))
}

// A run that waits for another one can be stopped, and never ran.
func TestStopOfARunThatWaits(t *testing.T) {
	s := startServer(t, serverOptions{})
	c := mustDial(t, s.target(t))
	runs := filepath.Join(t.TempDir(), "runs")
	first := Run{Dir: filepath.Join(runs, "op-1"), Script: []byte("echo begins; sleep 60")}
	second := Run{Dir: filepath.Join(runs, "op-2"), Script: []byte("touch ../second")}
	for _, run := range []Run{first, second} {
		t.Cleanup(func() { killRun(run.Dir) })
		require.NoError(t, c.Start(t.Context(), run))
		require.Eventually(t, func() bool {
			out, err := os.ReadFile(filepath.Join(run.Dir, "output"))
			return err == nil && len(out) > 0
		}, 20*time.Second, 20*time.Millisecond)
	}
	status, err := c.Stop(t.Context(), second.Dir, 5*time.Second)
	require.NoError(t, err)
	require.Equal(t, 143, status.ExitCode)
	require.NoFileExists(t, filepath.Join(runs, "second"))
	state, err := c.Status(t.Context(), first.Dir)
	require.NoError(t, err)
	require.Equal(t, RunRunning, state.State, "the other one is not touched")
}
