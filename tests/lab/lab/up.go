package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Up starts the switch and what it offers; machines come with Boot.
func (l *Lab) Up(ctx context.Context) error {
	if err := l.removeLeftovers(ctx); err != nil {
		return err
	}
	defer l.step("starting the switch, packages and images")()
	if err := os.MkdirAll(l.Path("logs"), 0o750); err != nil {
		return err
	}
	if err := errors.Join(l.createIdentity(), createSwitch(ctx)); err != nil {
		return err
	}
	return l.startServing(ctx)
}

// removeLeftovers removes what is left of a lab that was killed, of this source tree or
// another's. A lab in which something runs is left alone: that is an error.
func (l *Lab) removeLeftovers(ctx context.Context) error {
	left, err := l.Leftovers()
	if err != nil || len(left) == 0 {
		return err
	}
	running, err := l.labProcesses(ctx)
	if err != nil {
		return err
	}
	if len(running) > 0 {
		return fmt.Errorf("a lab is running already (make lab-down, where it was started, removes it): %d processes, one is %s", len(running), running[0])
	}
	_, _ = fmt.Fprintf(l.log, "lab: a lab was killed here; what it has left is removed: %s\n", strings.Join(left, "; "))
	return l.Down(ctx)
}

// Boot makes machines and waits until each answers. With bundle, they have the
// bundle of To in /opt/ebb/bundle.
func (l *Lab) Boot(ctx context.Context, bundle bool, names ...string) error {
	defer l.step("booting %s", strings.Join(names, ", "))()
	dir := ""
	if bundle {
		dir = l.Bundle()
	}
	for _, name := range names {
		m, err := l.Machine(name)
		if err != nil {
			return err
		}
		if err := errors.Join(m.create(ctx), m.start(ctx, dir)); err != nil {
			return err
		}
	}
	for _, name := range names {
		m, err := l.Machine(name)
		if err != nil {
			return err
		}
		if err := m.waitBooted(ctx); err != nil {
			return err
		}
	}
	return nil
}

// waitBooted waits until SSH and containerd are running.
func (m *Machine) waitBooted(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return pollUntil(waiting, "machine "+m.Name+" does not come up", func() error {
		_, err := m.Run(waiting, "systemctl is-active ssh containerd")
		return err
	})
}

// Down removes everything that Up and Boot have made, as far as it is there, and
// says what is left all the same.
func (l *Lab) Down(ctx context.Context) error {
	defer l.step("removing the lab")()
	var errs []error
	for _, name := range machineNames {
		m, err := l.Machine(name)
		if err != nil {
			return err
		}
		errs = append(errs, m.Destroy(ctx))
	}
	errs = append(errs, l.stopDaemons(ctx), removeCgroups(""))
	if _, err := os.Stat(SwitchNamespace); err == nil {
		errs = append(errs, ip(ctx, "netns delete "+switchNetns))
	}
	errs = append(errs, os.RemoveAll(l.run))
	left, err := l.Leftovers()
	if len(left) > 0 {
		errs = append(errs, fmt.Errorf("left behind: %s", strings.Join(left, "; ")))
	}
	return errors.Join(append(errs, err)...)
}

// daemon starts a process that outlives this one and ends with Down.
func (l *Lab) daemon(name string, args ...string) error {
	out, err := os.OpenFile(l.Path("logs", name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()                                     // the child has its own
	cmd := exec.CommandContext(context.Background(), args[0], args[1:]...) // #nosec G204 -- our own program
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // its end is of no interest
	return write(l.Path("daemons", name), strconv.Itoa(cmd.Process.Pid), 0o600)
}

func (l *Lab) stopDaemons(ctx context.Context) error {
	notes, err := filepath.Glob(l.Path("daemons", "*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, note := range notes {
		errs = append(errs, l.stopDaemon(ctx, note))
	}
	return errors.Join(errs...)
}

func (l *Lab) stopDaemon(ctx context.Context, note string) error {
	text, err := read(note)
	if err != nil {
		return err
	}
	line, err := read("/proc/" + text + "/cmdline")
	if err != nil || !strings.HasPrefix(line, l.Program("ebblab")) {
		return nil //nolint:nilerr // it has ended; the number may be another's by now
	}
	pid, err := strconv.Atoi(text)
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return pollUntil(waiting, "process "+text+" does not end", func() error {
		if line, err := read("/proc/" + text + "/cmdline"); err == nil && line != "" {
			return fmt.Errorf("%.100s is still there", line)
		}
		return nil
	})
}
