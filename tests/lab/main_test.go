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

// insideEnv is set in the process that runs the tests, which is inside the switch.
const insideEnv = "EBB_LAB_INSIDE"

// The lab, or why there is none.
var (
	machines *lab.Lab
	skipped  = "the lab takes half an hour: run it with make lab"
)

func TestMain(m *testing.M) {
	if os.Getenv("EBB_LAB") == "" {
		os.Exit(m.Run())
	}
	var err error
	if machines, err = lab.New(filepath.Join("..", ".."), os.Stdout); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	var unsupported *lab.Unsupported
	switch err := machines.Supported(); {
	case errors.As(err, &unsupported):
		skipped, machines = err.Error(), nil
		fmt.Println("SKIPPED:", skipped)
		os.Exit(m.Run())
	case err != nil:
		fmt.Println(err)
		os.Exit(1)
	case os.Getenv(insideEnv) != "":
		os.Exit(m.Run())
	}
	if err := around(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// around starts the switch, runs the tests inside it, and leaves nothing behind.
func around() (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	defer stop()
	if err := machines.Build(ctx); err != nil {
		return err
	}
	if err := machines.Up(ctx); err != nil {
		return err
	}
	defer func() {
		removing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Minute)
		defer cancel()
		if err != nil {
			err = errors.Join(err, collect(removing))
		}
		err = errors.Join(err, machines.Down(removing))
	}()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	inside := exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + lab.SwitchNamespace, self}, os.Args[1:]...)...)
	inside.Env = append(os.Environ(), insideEnv+"=1")
	inside.Stdout, inside.Stderr = os.Stdout, os.Stderr
	inside.Cancel = func() error { return inside.Process.Signal(syscall.SIGTERM) }
	inside.WaitDelay = 30 * time.Second
	return inside.Run()
}

// collect keeps the logs of the machines that are still there.
func collect(ctx context.Context) error {
	dir := os.Getenv("EBB_LAB_LOGS")
	if dir == "" {
		return nil
	}
	fmt.Println("logs of the machines:", dir)
	return machines.Collect(ctx, dir)
}
