// Package testbed is a sandbox cluster, an embedded engine and worker processes
// as one thing: what the demo shows and the end-to-end tests try.
package testbed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"go.temporal.io/sdk/client"
	"go.uber.org/zap"

	"ebb/internal/config"
	"ebb/internal/embedded"
	"ebb/internal/engine"
	"ebb/internal/ops"
	"ebb/internal/sandbox"
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
}

// Bed is a running test bed.
type Bed struct {
	Sandbox    *sandbox.Sandbox
	Engine     *embedded.Server
	Client     client.Client
	Ops        ops.Client
	Config     string // path of ebb.yaml
	Kubeconfig string // path of the worker's, which has the rights of deployments/ only

	options Options
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
	if err := b.grant(ctx); err != nil {
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

// StartEngine starts the engine on its file, which may hold operations from before.
func (b *Bed) StartEngine(ctx context.Context) error {
	o := embedded.Options{Dir: filepath.Join(b.options.Dir, "engine"), UIPort: b.options.UIPort, Log: b.options.Log}
	if b.Engine != nil { // workers that are running look for it where it was
		_, port, err := net.SplitHostPort(b.Engine.Address())
		if err != nil {
			return err
		}
		if o.Port, err = strconv.Atoi(port); err != nil {
			return err
		}
	}
	server, err := embedded.Start(ctx, o)
	if err != nil {
		return fmt.Errorf("start the engine: %w", err)
	}
	b.Engine = server
	b.Client, err = engine.Dial(ctx, b.options.Log, engine.Options{Address: server.Address(), Namespace: server.Namespace()})
	if err != nil {
		return err
	}
	b.Ops = ops.NewTemporal(b.Client, server.Namespace())
	return nil
}

// StopEngine stops the engine as a crash would leave it: its file stays.
func (b *Bed) StopEngine() {
	b.Client.Close()
	b.Engine.Stop()
}

// Stop ends everything that was started.
func (b *Bed) Stop() error {
	var errs []error
	for _, w := range b.workers {
		errs = append(errs, w.Stop())
	}
	if b.Engine != nil {
		b.StopEngine()
	}
	b.Sandbox.Stop()
	return errors.Join(errs...)
}

// Worker starts an ebb-worker process for the test bed.
func (b *Bed) Worker(ctx context.Context) (*Process, error) {
	binary, err := Binary("ebb-worker")
	if err != nil {
		return nil, err
	}
	log := filepath.Join(b.options.Dir, fmt.Sprintf("worker-%d.log", len(b.workers)+1))
	p, err := StartProcess(ctx, log, append(os.Environ(), b.Env()...), binary)
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

// Env points an ebb process at the test bed.
func (b *Bed) Env() []string {
	return []string{"EBB_CONFIG=" + b.Config, "TEMPORAL_ADDRESS=" + b.Engine.Address(), "TEMPORAL_NAMESPACE=" + b.Engine.Namespace()}
}

// Poll asks until the answer is yes, the error is not nil, or ctx ends. It is
// for states that nothing announces.
func Poll(ctx context.Context, ask func() (bool, error)) error {
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		done, err := ask()
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}
