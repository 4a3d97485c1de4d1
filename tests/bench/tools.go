package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"ebb/internal/config"
	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/internal/testbed"
)

// The ways of kubectl. Given several nodes, kubectl drain cordons all of them
// first and then drains one after the other, as Ebb does.

func drainInSequence(ctx context.Context, l *cluster, r row) error {
	return l.kubectl(ctx, append([]string{"drain", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=10m"}, r.nodes...)...)
}

// drainSeparately returns what most people type: a command for each node. The pods of
// the first node may move to the next one.
func drainSeparately(ctx context.Context, l *cluster, r row) error {
	for _, node := range r.nodes {
		if err := drainInSequence(ctx, l, row{nodes: []string{node}}); err != nil {
			return err
		}
	}
	return nil
}

func drainConcurrently(ctx context.Context, l *cluster, r row) error {
	processes, ctx := errgroup.WithContext(ctx)
	for _, node := range r.nodes {
		processes.Go(func() error {
			return drainInSequence(ctx, l, row{nodes: []string{node}})
		})
	}
	return processes.Wait()
}

// scaleDown returns what a person can do with kubectl; Ebb destroys the machines as well.
func scaleDown(ctx context.Context, l *cluster, r row) error {
	if err := drainConcurrently(ctx, l, r); err != nil {
		return err
	}
	return l.kubectl(ctx, append([]string{"delete", "node"}, r.nodes...)...)
}

// kubectl runs the kubectl of the sandbox's own Kubernetes version.
func (l *cluster) kubectl(ctx context.Context, args ...string) error {
	home := filepath.Join(l.dir, "home")
	args = append([]string{"--kubeconfig", l.kubectlAccount.kubeconfig, "--cache-dir", filepath.Join(home, "cache")}, args...)
	cmd := exec.CommandContext(ctx, filepath.Join(os.Getenv("EBB_BIN"), "kubectl"), args...) // #nosec G204 G702 -- our own kubectl
	cmd.Env = append(os.Environ(), "HOME="+home)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		text := out.String()
		return fmt.Errorf("kubectl %s: %w: ... %s", strings.Join(args, " "), err, text[max(0, len(text)-2000):])
	}
	return nil
}

// configureWorker makes the worker use the account that is counted as Ebb's, and
// drain so many nodes at once.
func (l *cluster) configureWorker(parallel int) error {
	return l.testbed.Configure(func(c *config.Cluster) {
		c.Kubeconfig = l.ebbAccount.kubeconfig
		c.Scale.MaxParallel = parallel
		c.Drain.Timeout = config.DefaultDrainTimeout
	})
}

// runOperation runs one operation to its end and returns its ID. It waits for the
// workflow itself: what follows an operation for people looks every 300 ms.
func (l *cluster) runOperation(ctx context.Context, r row) (string, error) {
	request := ops.Request{Kind: r.kind, Cluster: testbed.ClusterName, Nodes: r.nodes}
	if r.kind == operation.KindUpgrade {
		request.Target = target
	}
	var err error
	if request.ID, err = ops.NewID(r.kind, request.Cluster, time.Now()); err != nil {
		return "", err
	}
	if _, _, err := l.testbed.Ops.Start(ctx, request); err != nil {
		return "", err
	}
	if err := l.testbed.Client.GetWorkflow(ctx, request.ID, "").Get(ctx, nil); err != nil {
		return "", fmt.Errorf("operation %s: %w", request.ID, err)
	}
	return request.ID, nil
}
