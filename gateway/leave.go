package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"ebb/internal/command"
)

// aboutLeave is printed above the flags.
const aboutLeave = `ebb-gateway leave tells the gateway in this container that it will be stopped, and returns
when its callers have had time to go to another one: a preStop hook. Meanwhile that
gateway serves everything, says that it is not ready, and closes each connection after
an answer. Its SIGTERM, from which on it sends new requests away, comes afterwards.

Flags:
`

// leaveSignal tells a gateway that it will be stopped.
const leaveSignal = syscall.SIGUSR1

// whenTold calls f each time that somebody says that this process will be stopped, until
// stop is called.
func whenTold(f func()) (stop func()) {
	told, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(told, leaveSignal)
	go func() {
		for {
			select {
			case <-told:
				f()
			case <-done:
				return
			}
		}
	}()
	return func() {
		signal.Stop(told)
		close(done)
	}
}

// runLeave runs `ebb-gateway leave` and returns its exit code.
func runLeave(args []string, stderr io.Writer) int {
	var pid int
	var wait time.Duration
	flags := flag.NewFlagSet("ebb-gateway leave", flag.ContinueOnError)
	flags.IntVar(&pid, "pid", 1, "the gateway's process: 1 in a container that it has to itself")
	flags.DurationVar(&wait, "for", 10*time.Second, "how long its callers have, before this returns")
	if err := command.ParseFlags(flags, aboutLeave, args, stderr); err != nil {
		return command.ParseExitCode(err)
	}
	if pid < 1 || wait < 0 {
		command.Printf(stderr, "ebb-gateway leave: --pid must be 1 or more, and --for 0s or more\n")
		return command.ExitUsage
	}
	if err := tellToLeave(pid); err != nil {
		command.Printf(stderr, "ebb-gateway leave: %v\n", err)
		return command.ExitFailed
	}
	time.Sleep(wait)
	return command.ExitDone
}

// tellToLeave sends the signal to a process that runs the same program as this one: another
// one might die of it.
func tellToLeave(pid int) error {
	theirs, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("there is no process %d here: name the gateway's with --pid", pid)
	case err != nil:
		return fmt.Errorf("what process %d is cannot be found out: %w", pid, err)
	}
	own, err := os.Stat("/proc/self/exe")
	if err != nil {
		return err
	}
	if !os.SameFile(own, theirs) {
		return fmt.Errorf("process %d is no ebb-gateway of this version: name the gateway's with --pid", pid)
	}
	if err := syscall.Kill(pid, leaveSignal); err != nil {
		return fmt.Errorf("tell process %d: %w", pid, err)
	}
	return nil
}
