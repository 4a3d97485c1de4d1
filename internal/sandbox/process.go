package sandbox

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"

	"ebb/internal/sandbox/child"
	"ebb/internal/tail"
)

// launcher starts the programs of a sandbox.
type launcher struct {
	dir string // of the sandbox: working and home directory
	log *zap.Logger
}

// process is one program of the control plane.
type process struct {
	name     string
	logFile  string
	cmd      *exec.Cmd
	ended    chan struct{} // closed when it has ended
	stopping atomic.Bool   // it was told to end
}

// start runs a program; its output is appended to logs/<name>.log.
func (l *launcher) start(path string, args ...string) (*process, error) {
	p := &process{name: filepath.Base(path), ended: make(chan struct{})}
	p.logFile = filepath.Join(l.dir, "logs", p.name+".log")
	out, err := os.OpenFile(p.logFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	// #nosec G204 -- one of our own programs
	//nolint:noctx // it is ended by stop, not by a context
	p.cmd = exec.Command(path, args...)
	p.cmd.Dir, p.cmd.Env = l.dir, []string{"HOME=" + l.dir, "PATH=" + os.Getenv("PATH")}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	err = child.Start(p.cmd)
	if closeErr := out.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	go func() {
		waitErr := p.cmd.Wait()
		if !p.stopping.Load() {
			l.log.Error("a program of the sandbox has ended by itself", zap.String("program", p.name), zap.Error(waitErr), zap.String("log", p.logFile))
		}
		close(p.ended)
	}()
	return p, nil
}

// stop ends the process: SIGTERM, and SIGKILL after the grace; a grace of 0 kills at once.
func (p *process) stop(grace time.Duration) {
	p.stopping.Store(true)
	if grace > 0 && p.cmd.Process.Signal(syscall.SIGTERM) == nil {
		select {
		case <-p.ended:
			return
		case <-time.After(grace):
		}
	}
	_ = p.cmd.Process.Kill() // fails only when it has ended
	<-p.ended
}

// failure describes a program that ended, with the end of its log.
func (p *process) failure() error {
	const lines = 15
	data, err := os.ReadFile(p.logFile)
	if err != nil {
		return fmt.Errorf("%s has ended (%s), and its log cannot be read: %w", p.name, p.cmd.ProcessState, err)
	}
	return fmt.Errorf("%s has ended (%s); the end of %s:\n%s", p.name, p.cmd.ProcessState, p.logFile, tail.Lines(string(data), lines))
}
