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

// cluster is a running cluster with an engine, a worker and an account for each tool.
type cluster struct {
	testbed        *testbed.Bed
	dir            string
	spec           clusterSpec
	kubectlAccount account // kubectl's
	ebbAccount     account

	budgetCycle time.Duration // see calibrate
	podDeletion time.Duration
}

func newCluster(ctx context.Context, dir string, s clusterSpec) (*cluster, error) {
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
	l := &cluster{testbed: bed, dir: dir, spec: s}
	for _, step := range []func(context.Context) error{l.createAccounts, l.deploy, l.reset, l.calibrate} {
		if err := step(ctx); err != nil {
			return nil, errors.Join(fmt.Errorf("prepare cluster %s: %w", s.name, err), bed.Stop())
		}
	}
	return l, nil
}

func (l *cluster) api() kubernetes.Interface { return l.testbed.Sandbox.Client() }

// createAccounts makes the accounts and starts the worker. kubectl asks once for what the
// API server offers, which it keeps for later calls as it does for people.
func (l *cluster) createAccounts(ctx context.Context) (err error) {
	admin := l.testbed.Sandbox.Kubeconfig()
	if l.kubectlAccount, err = newAccount(ctx, l.api(), admin, l.dir, "bench-kubectl"); err != nil {
		return err
	}
	if l.ebbAccount, err = newAccount(ctx, l.api(), admin, l.dir, "bench-ebb"); err != nil {
		return err
	}
	if err := l.configureWorker(1); err != nil {
		return err
	}
	if _, err := l.testbed.Worker(ctx); err != nil {
		return err
	}
	return l.kubectl(ctx, "get", "nodes")
}

// deploy makes the workloads, at home if they have one.
func (l *cluster) deploy(ctx context.Context) error {
	if err := l.setSchedulable(ctx, l.spec.node); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, app := range l.spec.apps {
		group.Go(func() error { return l.testbed.Sandbox.Deploy(ctx, app) })
	}
	return group.Wait()
}
