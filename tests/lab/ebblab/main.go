// Ebblab starts and stops the lab by hand, and runs as its own helpers.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"ebb/tests/lab/lab"
)

const help = `usage: ebblab COMMAND REPOSITORY
  build     build what machines are made of
  up        start one control plane and two workers
  down      remove the lab, all of it
  serve     serve packages and images inside the switch (started by up)
  provider  answer an infrastructure request of Ebb (provider exec)`

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if len(args) != 2 {
		return errors.New(help)
	}
	l, err := lab.New(args[1], os.Stderr)
	if err != nil {
		return err
	}
	switch args[0] {
	case "build":
		return l.Build(ctx)
	case "up":
		return up(ctx, l)
	case "down":
		return l.Down(ctx)
	case "serve":
		return l.Serve(ctx)
	case "provider":
		return provide(ctx, l)
	}
	return errors.New(help)
}

// machines are those of a lab that is started by hand.
var machines = []string{"cp1", "w1", "w2"}

func up(ctx context.Context, l *lab.Lab) error {
	if err := l.CheckHost(); err != nil {
		return err
	}
	if err := l.Build(ctx); err != nil {
		return err
	}
	if err := l.Up(ctx); err != nil {
		return err
	}
	if err := l.Boot(ctx, true, machines...); err != nil {
		return err
	}
	if err := l.CreateCluster(ctx, machines...); err != nil {
		return err
	}
	first, err := l.Machine(machines[0])
	if err != nil {
		return err
	}
	fmt.Printf(`The lab is up: %v at %s. From inside its switch,
  nsenter --net=%s bash
you reach the machines (ssh -i %s %s@%s, and so on) and the cluster:
  export KUBECONFIG=%s PATH=%s:$PATH
make lab-down removes it.
`, machines, lab.From, lab.SwitchNamespace, l.Identity(), lab.User, first.Address(), l.Kubeconfig(), l.Program(lab.From))
	return nil
}

// provide is infrastructure as Ebb's provider exec asks for it: a machine is
// switched off and removed.
func provide(ctx context.Context, l *lab.Lab) error {
	var request struct {
		Action  string `json:"action"`
		Machine struct {
			Node string `json:"node"`
		} `json:"machine"`
	}
	if err := json.NewDecoder(os.Stdin).Decode(&request); err != nil {
		return err
	}
	m, err := l.Machine(request.Machine.Node)
	if err != nil {
		return err
	}
	if request.Action == "destroy" {
		if err := m.Destroy(ctx); err != nil {
			return err
		}
	}
	state := "gone"
	switch {
	case m.Running():
		state = "running"
	case m.Exists():
		state = "stopped"
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]string{"state": state})
}
