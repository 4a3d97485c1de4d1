package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"

	"ebb/internal/sandbox"
	"ebb/internal/testbed"
)

// What a pod takes in the sandbox.
const (
	podReadyDelay  = 2 * time.Second // from its start until it is ready
	podDeleteDelay = time.Second     // from its deletion until it is gone
)

// lab is a running cluster with an engine, a worker and an account for each tool.
type lab struct {
	bed   *testbed.Bed
	dir   string
	shape shape
	peer  account // kubectl's
	ebb   account

	cycle time.Duration // see calibrate
	gone  time.Duration
}

func newLab(ctx context.Context, dir string, s shape) (*lab, error) {
	command, err := workerCommand(s.name)
	if err != nil {
		return nil, err
	}
	bed, err := testbed.Start(ctx, testbed.Options{
		Dir: dir, UIPort: -1, WorkerCommand: command,
		Sandbox: sandbox.Options{ControlPlanes: 1, Workers: s.workers, PodReadyDelay: podReadyDelay, PodDeleteDelay: podDeleteDelay},
	})
	if err != nil {
		return nil, err
	}
	l := &lab{bed: bed, dir: dir, shape: s}
	for _, step := range []func(context.Context) error{l.open, l.deploy, l.level, l.calibrate} {
		if err := step(ctx); err != nil {
			return nil, errors.Join(fmt.Errorf("prepare cluster %s: %w", s.name, err), bed.Stop())
		}
	}
	return l, nil
}

func (l *lab) api() kubernetes.Interface { return l.bed.Sandbox.Client() }

// open makes the accounts and starts the worker. kubectl asks once for what the
// API server offers, which it keeps for later calls as it does for people.
func (l *lab) open(ctx context.Context) (err error) {
	admin := l.bed.Sandbox.Kubeconfig()
	if l.peer, err = newAccount(ctx, l.api(), admin, l.dir, "bench-kubectl"); err != nil {
		return err
	}
	if l.ebb, err = newAccount(ctx, l.api(), admin, l.dir, "bench-ebb"); err != nil {
		return err
	}
	if err := l.configure(1); err != nil {
		return err
	}
	if _, err := l.bed.Worker(ctx); err != nil {
		return err
	}
	return l.kubectl(ctx, "get", "nodes")
}

// deploy makes the workloads, at home if they have one.
func (l *lab) deploy(ctx context.Context) error {
	if err := l.setSchedulable(ctx, l.shape.home); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, app := range l.shape.apps {
		group.Go(func() error { return l.bed.Sandbox.Deploy(ctx, app) })
	}
	return group.Wait()
}
