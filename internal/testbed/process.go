package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"ebb/internal/sandbox/child"
)

// stopPatience is how long a process gets after its SIGTERM.
const stopPatience = 30 * time.Second

// Process is a child process whose output goes to a file.
type Process struct {
	Log  string // path
	cmd  *exec.Cmd
	done chan struct{}
}

// Binary returns the path of a program: of the sandbox in EBB_SANDBOX_BIN, of Ebb in EBB_BIN,
// of either beside the running one.
func Binary(name string) (string, error) {
	dirs := []string{os.Getenv("EBB_SANDBOX_BIN"), os.Getenv("EBB_BIN")}
	if self, err := os.Executable(); err == nil {
		dirs = append(dirs, filepath.Dir(self))
	}
	for _, dir := range dirs {
		if dir == "" {
			continue
		}
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() { // #nosec G703 -- EBB_BIN is the user's own
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not in %v: run make build tools", name, dirs)
}

// StartProcess starts a process that dies with this one; its output is appended to
// the file log.
func StartProcess(ctx context.Context, log string, env []string, name string, args ...string) (*Process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600) // #nosec G304 -- below the test bed
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()                                    // the child has its own
	cmd := exec.CommandContext(context.WithoutCancel(ctx), name, args...) // #nosec G204 -- one of our own binaries
	cmd.Env, cmd.Stdout, cmd.Stderr = env, out, out
	if err := child.Start(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Process{Log: log, cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // how it ended is in ProcessState
	}()
	return p, nil
}

// Kill ends the process with SIGKILL, as a crash would, and waits for its end.
func (p *Process) Kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.done
	return nil
}

// Stop asks the process to end and waits; one that does not end is killed and
// that is an error.
func (p *Process) Stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		if errors.Is(err, os.ErrProcessDone) {
			return nil
		}
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(stopPatience):
		return errors.Join(fmt.Errorf("%s did not end within %s of its SIGTERM", p.cmd.Path, stopPatience), p.Kill())
	}
}

// Done returns a channel that is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// ExitCode returns the code the process ended with; it waits for the end.
func (p *Process) ExitCode() int {
	<-p.done
	return p.cmd.ProcessState.ExitCode()
}

// PID returns the process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }
