// Package testbed is a sandbox cluster, an embedded engine and worker processes
// as one thing: what the demo shows and the end-to-end tests try.
package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.temporal.io/sdk/client"
	"go.uber.org/zap"

	"ebb/deployments"
	"ebb/internal/config"
	"ebb/internal/embedded"
	"ebb/internal/ops"
	"ebb/internal/sandbox"
	"ebb/internal/wait"
)

// ClusterName is what the sandbox cluster is called in the test bed's ebb.yaml.
const ClusterName = "sandbox"

// Options of a test bed.
type Options struct {
	Dir     string // everything is kept here; it must exist
	Sandbox sandbox.Options
	UIPort  int                   // of the Web UI; 0 = a free one, -1 = none
	Edit    func(*config.Cluster) // changes to what ebb.yaml says of the sandbox
	Log     *zap.Logger

	EngineProcess bool     // the engine is `ebb dev --no-worker`, which KillEngine can kill; without a Web UI
	WorkerCommand []string // program and arguments of a worker; nil = ebb-worker
	WorkerEnv     []string // added to a worker's environment
}

// Bed is a running test bed.
type Bed struct {
	Sandbox    *sandbox.Sandbox
	Engine     *embedded.Server // nil when the engine is a process of its own
	Client     client.Client
	Ops        ops.Client
	Config     string // path of ebb.yaml
	Kubeconfig string // path of the worker's, which has the rights of deployments/ only

	options Options
	address string // of the engine, host:port
	engine  *Process
	workers []*Process
}

// Start starts a sandbox and an engine; workers are started one by one.
func Start(ctx context.Context, o Options) (*Bed, error) {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	b := &Bed{options: o, Config: filepath.Join(o.Dir, "ebb.yaml")}
	o.Sandbox.Dir, o.Sandbox.Log = filepath.Join(o.Dir, "sandbox"), o.Log
	var err error
	if b.Sandbox, err = sandbox.Start(ctx, o.Sandbox); err != nil {
		return nil, fmt.Errorf("start the sandbox: %w", err)
	}
	b.Kubeconfig = filepath.Join(b.options.Dir, "worker.kubeconfig")
	if err := WriteKubeconfig(ctx, b.Sandbox, "ebb-worker", deployments.RBAC, b.Kubeconfig); err != nil {
		return nil, errors.Join(err, b.Stop())
	}
	if err := b.Configure(nil); err != nil {
		return nil, errors.Join(err, b.Stop())
	}
	if err := b.StartEngine(ctx); err != nil {
		return nil, errors.Join(err, b.Stop())
	}
	return b, nil
}

// Configure writes ebb.yaml as the sandbox suggests it, with changes.
func (b *Bed) Configure(edit func(*config.Cluster)) error {
	cluster := b.Sandbox.Cluster(ClusterName)
	cluster.Kubeconfig = b.Kubeconfig
	if b.options.Edit != nil {
		b.options.Edit(&cluster)
	}
	if edit != nil {
		edit(&cluster)
	}
	if err := b.Sandbox.WriteConfig(b.Config, cluster); err != nil {
		return fmt.Errorf("write %s: %w", b.Config, err)
	}
	return nil
}

// Stop ends everything that was started.
func (b *Bed) Stop() error {
	var errs []error
	for _, w := range b.workers {
		errs = append(errs, w.Stop())
	}
	errs = append(errs, b.endEngine())
	b.Sandbox.Stop()
	return errors.Join(errs...)
}

// Worker starts a worker process for the test bed.
func (b *Bed) Worker(ctx context.Context) (*Process, error) {
	command := b.options.WorkerCommand
	if len(command) == 0 {
		binary, err := Binary("ebb-worker")
		if err != nil {
			return nil, err
		}
		command = []string{binary}
	}
	log := filepath.Join(b.options.Dir, fmt.Sprintf("worker-%d.log", len(b.workers)+1))
	p, err := StartProcess(ctx, log, slices.Concat(os.Environ(), b.Env(), b.options.WorkerEnv), command[0], command[1:]...)
	if err != nil {
		return nil, err
	}
	b.workers = append(b.workers, p)
	return p, nil
}

// KillWorkers kills every worker with SIGKILL.
func (b *Bed) KillWorkers() error {
	var errs []error
	for _, w := range b.workers {
		errs = append(errs, w.Kill())
	}
	return errors.Join(errs...)
}

// Env returns the variables that point an ebb process at the test bed.
func (b *Bed) Env() []string {
	return []string{"EBB_CONFIG=" + b.Config, "TEMPORAL_ADDRESS=" + b.address, "TEMPORAL_NAMESPACE=" + client.DefaultNamespace}
}

// pollInterval is how often the end of a wait is looked for.
const pollInterval = 100 * time.Millisecond

// Poll is wait.Poll at the test bed's interval of 100 ms.
func Poll(ctx context.Context, condition func() (done bool, err error)) error {
	return wait.Poll(ctx, pollInterval, condition)
}
