package sandbox

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"
)

// launcher starts processes that die with this one. The kernel ties that to the
// thread that started them, so one locked thread starts them all.
type launcher struct {
	dir   string // working and home directory
	logs  string
	log   *zap.Logger
	tasks chan func()
}

func newLauncher(dir string, log *zap.Logger) *launcher {
	l := &launcher{dir: dir, logs: filepath.Join(dir, "logs"), log: log, tasks: make(chan func())}
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for task := range l.tasks {
			task()
		}
	}()
	return l
}

// close lets the thread go; the processes must have ended.
func (l *launcher) close() { close(l.tasks) }

// process is one program of the control plane.
type process struct {
	name    string
	logFile string
	cmd     *exec.Cmd
	ended   chan struct{} // closed when it has ended
	wanted  atomic.Bool   // its end is wanted
}

// start runs a program; its output is appended to logs/<name>.log.
func (l *launcher) start(path string, args ...string) (*process, error) {
	p := &process{name: filepath.Base(path), ended: make(chan struct{})}
	p.logFile = filepath.Join(l.logs, p.name+".log")
	out, err := os.OpenFile(p.logFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	// #nosec G204 -- one of our own programs
	//nolint:noctx // it is ended by stop, not by a context
	p.cmd = exec.Command(path, args...)
	p.cmd.Dir, p.cmd.Env = l.dir, []string{"HOME=" + l.dir, "PATH=" + os.Getenv("PATH")}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = dieWithParent()
	started := make(chan error)
	l.tasks <- func() { started <- p.cmd.Start() }
	err = <-started
	if closeErr := out.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	go func() {
		waitErr := p.cmd.Wait()
		if !p.wanted.Load() {
			l.log.Error("a program of the sandbox has ended by itself", zap.String("program", p.name), zap.Error(waitErr), zap.String("log", p.logFile))
		}
		close(p.ended)
	}()
	return p, nil
}

// stop ends the process: SIGTERM, and SIGKILL after the grace; a grace of 0 kills at once.
func (p *process) stop(grace time.Duration) {
	p.wanted.Store(true)
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
	all := bytes.Split(bytes.TrimSpace(data), []byte("\n"))
	return fmt.Errorf("%s has ended (%s); the end of %s:\n%s", p.name, p.cmd.ProcessState, p.logFile,
		bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}
