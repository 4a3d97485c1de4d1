// Package demo plays four operations on a sandbox: a real control plane with
// simulated kubelets, an engine and a worker process. It is what `ebb demo` runs.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"go.uber.org/zap"

	"ebb/internal/command"
	"ebb/internal/config"
	"ebb/internal/ops"
	"ebb/internal/sandbox"
	"ebb/internal/testbed"
	"ebb/internal/workers"
)

// Options of a demo.
type Options struct {
	Out  io.Writer // what happens is told here
	Keep bool      // everything is left running at the end, until the context ends

	// Follow shows an operation on Out until it is over and returns its last state.
	Follow func(ctx context.Context, operations ops.Client, id string) (ops.Operation, error)
}

// demo is a run of the demo.
type demo struct {
	Options
	dir    string // holds everything, logs included; removed when all acts went well
	bed    *testbed.Bed
	played []played
}

// act is one operation, or two, with the end state that it has to lead to.
type act struct {
	title string
	play  func(context.Context) error
}

// played is an act that has ended.
type played struct {
	act
	took time.Duration
	err  error
}

// Run plays all acts and checks the end state of each against the API. It returns
// the error of the first act that failed, with the directory of the logs.
func Run(ctx context.Context, o Options) error { return (&demo{Options: o}).run(ctx) }

// Work is the worker process of a demo: it does what ebb-worker does until ctx ends.
func Work(ctx context.Context) error {
	file, err := config.Open(config.Path(""))
	if err != nil {
		return err
	}
	return workers.Serve(ctx, workers.Options{Config: file, Log: zap.NewNop()})
}

func (d *demo) acts() []act {
	return []act{
		{"a scale-down by two nodes; a budget blocks it for a while", d.scaleDown},
		{"a scale-down that cannot work is rolled back", d.rolledBack},
		{"an upgrade whose worker is killed in the middle of a drain", d.workerKilled},
		{"an upgrade that fails on a node, and is resumed there", d.upgradeResumed},
	}
}

func (d *demo) run(ctx context.Context) (err error) {
	if d.dir, err = os.MkdirTemp("", "ebb-demo-"); err != nil {
		return err
	}
	if err := d.start(ctx); err != nil {
		return fmt.Errorf("%w (logs are in %s)", err, d.dir)
	}
	defer func() { err = errors.Join(err, d.bed.Stop()) }()
	for i, act := range d.acts() {
		d.say("\n=== act %d: %s\n", i+1, act.title)
		began := time.Now()
		err := act.play(ctx)
		d.played = append(d.played, played{act, time.Since(began), err})
		if err != nil {
			break // the acts build on one another
		}
	}
	failed := d.summary()
	if d.Keep && ctx.Err() == nil {
		d.waitForInterrupt(ctx)
	}
	if failed != nil {
		return fmt.Errorf("%w (logs are in %s)", failed, d.dir)
	}
	return os.RemoveAll(d.dir)
}

// start starts everything and makes 42 pods behind five budgets.
func (d *demo) start(ctx context.Context) error {
	began := time.Now()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	d.say("starting a control plane with six workers, an engine and a worker process ...\n")
	bed, err := testbed.Start(ctx, testbed.Options{
		Dir: d.dir, Log: zap.NewNop(),
		Sandbox: sandbox.Options{
			ControlPlanes: 1, Workers: 6, PodReadyDelay: time.Second, PodDeleteDelay: 500 * time.Millisecond, ScriptDelay: time.Second,
		},
		WorkerCommand: []string{self, "demo", "--worker"}, // one program less to build than ebb-worker
		Edit:          func(c *config.Cluster) { c.Drain.Timeout, c.Scale.Attempts = config.Duration(time.Minute), 2 },
	})
	if err != nil {
		return err
	}
	d.bed = bed
	for name, budget := range budgets {
		replicas := int32(8)
		if name == "web" {
			replicas = 10
		}
		if err := bed.Sandbox.Deploy(ctx, sandbox.Workload{Name: name, Replicas: replicas, Spread: true, Budget: &budget}); err != nil {
			return errors.Join(err, bed.Stop())
		}
	}
	if _, err := bed.Worker(ctx); err != nil {
		return errors.Join(err, bed.Stop())
	}
	d.say("ready after %s: 7 nodes, 42 pods behind 5 budgets\nTemporal Web UI: %s\n", time.Since(began).Round(100*time.Millisecond), bed.Engine.UI())
	return nil
}

// budgets are what the workloads allow when no act changes it.
var budgets = map[string]sandbox.Budget{
	"web": {MaxUnavailable: "2"}, "cart": {MaxUnavailable: "1"}, "search": {MaxUnavailable: "25%"},
	"mail": {MinAvailable: "7"}, "orders": {MinAvailable: "75%"},
}

// operate starts an operation, calls meanwhile (which may be nil) beside it, and
// follows it to its end, which has to be the wanted one.
func (d *demo) operate(ctx context.Context, r ops.Request, want ops.State, meanwhile func(context.Context, string) error) (ops.Operation, error) {
	r.Cluster = testbed.ClusterName
	var err error
	if r.ID, err = ops.NewID(r.Kind, r.Cluster, time.Now()); err != nil {
		return ops.Operation{}, err
	}
	d.say("$ ebb %s\n", commandLine(r))
	if _, _, err := d.bed.Ops.Start(ctx, r); err != nil {
		return ops.Operation{}, err
	}
	beside := make(chan error, 1)
	go func() {
		if meanwhile == nil {
			beside <- nil
			return
		}
		beside <- meanwhile(ctx, r.ID)
	}()
	last, err := d.Follow(ctx, d.bed.Ops, r.ID)
	if err = errors.Join(err, <-beside); err != nil {
		return last, err
	}
	if last.State != want {
		return last, fmt.Errorf("operation %s is %s, want %s: %s", r.ID, last.State, want, last.Message)
	}
	return last, nil
}

// summary prints the table of acts and returns the error of the one that failed.
func (d *demo) summary() error {
	d.say("\n")
	table := tabwriter.NewWriter(d.Out, 0, 0, 2, ' ', 0)
	var failed error
	for i, p := range d.played {
		result := "ok"
		if p.err != nil {
			result, failed = "FAILED", fmt.Errorf("act %d: %w", i+1, p.err)
		}
		command.Printf(table, "act %d\t%s\t%.1f s\t%s\n", i+1, p.title, p.took.Seconds(), result)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if failed == nil {
		d.say("demo: all %d acts ok\n", len(d.played))
	}
	return failed
}

// waitForInterrupt says where everything is and leaves it running until ctx ends.
func (d *demo) waitForInterrupt(ctx context.Context) {
	self, err := os.Executable()
	if err != nil {
		self = "ebb"
	}
	d.say("\nleft running until Ctrl-C:\n  Temporal Web UI  %s\n  kubectl          kubectl --kubeconfig %s get nodes\n  ebb              %s %s list\n",
		d.bed.Engine.UI(), d.bed.Sandbox.Kubeconfig(), strings.Join(d.bed.Env(), " "), self)
	<-ctx.Done()
}

func (d *demo) say(format string, args ...any) { command.Printf(d.Out, format, args...) }
