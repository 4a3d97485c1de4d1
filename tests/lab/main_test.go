// Package labtest proves Ebb on real machines: a kubeadm cluster on systemd, SSH,
// containerd and kubelets is upgraded and made smaller while it serves, and the
// worker, the network and a disk fail in the middle. `make lab` runs it; the
// machines are made by package lab.
package labtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"ebb/tests/lab/lab"
)

// inSwitchEnv is set in the process that runs the tests, which is inside the switch.
const inSwitchEnv = "EBB_LAB_INSIDE"

// The lab, or why there is none.
var (
	testLab    *lab.Lab
	skipReason = "the lab takes half an hour: run it with make lab"
)

func TestMain(m *testing.M) {
	if os.Getenv("EBB_LAB") == "" {
		os.Exit(m.Run())
	}
	var err error
	if testLab, err = lab.New(filepath.Join("..", ".."), os.Stdout); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	var unsupported *lab.UnsupportedError
	switch err := testLab.CheckHost(); {
	case errors.As(err, &unsupported):
		skipReason, testLab = err.Error(), nil
		fmt.Println("SKIPPED:", skipReason)
		os.Exit(m.Run())
	case err != nil:
		fmt.Println(err)
		os.Exit(1)
	case os.Getenv(inSwitchEnv) != "":
		os.Exit(m.Run())
	}
	if err := runInSwitch(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// runInSwitch starts the switch, runs the tests inside it, and leaves nothing behind.
func runInSwitch() (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	defer stop()
	if err := testLab.Build(ctx); err != nil {
		return err
	}
	if err := testLab.Up(ctx); err != nil {
		return err
	}
	defer func() {
		removing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Minute)
		defer cancel()
		if err != nil {
			err = errors.Join(err, collectLogs(removing))
		}
		err = errors.Join(err, testLab.Down(removing))
	}()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	inside := exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + lab.SwitchNamespace, self}, os.Args[1:]...)...)
	inside.Env = append(os.Environ(), inSwitchEnv+"=1")
	inside.Stdout, inside.Stderr = os.Stdout, os.Stderr
	inside.Cancel = func() error { return inside.Process.Signal(syscall.SIGTERM) }
	inside.WaitDelay = 30 * time.Second
	return inside.Run()
}

// collectLogs keeps the logs of the machines that are still there.
func collectLogs(ctx context.Context) error {
	dir := os.Getenv("EBB_LAB_LOGS")
	if dir == "" {
		return nil
	}
	fmt.Println("logs of the machines:", dir)
	return testLab.Collect(ctx, dir)
}
