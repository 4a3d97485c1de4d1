// Package workers is the Temporal worker: what it registers, how it is tuned,
// and how it stops.
package workers

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/worker"
	"go.uber.org/zap"
	"k8s.io/client-go/transport"

	"ebb/activities"
	"ebb/internal/cluster"
	"ebb/internal/config"
	"ebb/internal/engine"
)

const (
	// heartbeatThrottle bounds how old the progress is that a user sees.
	heartbeatThrottle = time.Second
	// stopGrace is how long running activities get to hand over when the worker
	// stops. They end at once unless a request is in flight.
	stopGrace = 10 * time.Second
	// stickyTimeout is how long a workflow waits for the worker that has it in
	// memory before any other may take it: the delay after a worker was killed.
	stickyTimeout = 2 * time.Second
	// pollers are long polls kept open for each kind of task, so that a burst (a
	// preflight of ten nodes) is handed out without waiting for a poll to return.
	pollers = 8
	// concurrentActivities is more than any sensible number of operations needs:
	// one cluster runs at most ten at a time.
	concurrentActivities = 500
)

// Options of a worker.
type Options struct {
	Client    client.Client
	Namespace string       // of Client
	Config    *config.File // nil = no cluster is configured
	Log       *zap.Logger

	// Interceptors stand around what every worker has around its workflows and
	// activities, and Transports see every request to a cluster: a test watches
	// and stops a worker with them.
	Interceptors []interceptor.WorkerInterceptor
	Transports   []transport.WrapperFunc
}

// Serve connects to the engine that the TEMPORAL_* settings name and runs a worker
// for it until ctx ends; Client and Namespace of the options are set by it.
func Serve(ctx context.Context, o Options) (err error) {
	if o.Client, o.Namespace, err = engine.Connect(ctx, o.Log); err != nil {
		return err
	}
	defer o.Client.Close()
	worker, err := New(o)
	if err != nil {
		return err
	}
	return worker.Run(ctx)
}

// Worker runs workflows and activities until it is stopped.
type Worker struct {
	temporal          worker.Worker
	clusters          *cluster.Registry
	createReconcilers func(context.Context)
	identity          string
	log               *zap.Logger
	fatal             chan error
	stop              sync.Once
}

// New returns a worker that has not started.
func New(o Options) (*Worker, error) {
	identity, err := identify()
	if err != nil {
		return nil, err
	}
	file := o.Config
	if file == nil {
		file = new(config.File) // has no configuration; every use of it says so
	}
	w := &Worker{
		clusters: cluster.NewRegistry(file, o.Log, o.Transports...), identity: identity, log: o.Log, fatal: make(chan error, 1),
	}
	te := &temporalEngine{client: o.Client, namespace: o.Namespace}
	w.createReconcilers = func(ctx context.Context) { te.createReconcilers(ctx, file, o.Log) }
	w.temporal = worker.New(o.Client, engine.TaskQueue, w.options(o.Interceptors))
	RegisterWorkflows(w.temporal)
	registerActivities(w.temporal, &activities.Activities{
		Clusters: w.clusters, Engine: te, Log: o.Log, Now: time.Now,
	})
	return w, nil
}

func (w *Worker) options(outer []interceptor.WorkerInterceptor) worker.Options {
	return worker.Options{
		Identity:                           w.identity,
		Interceptors:                       append(slices.Clone(outer), &activities.Interceptor{}),
		MaxHeartbeatThrottleInterval:       heartbeatThrottle,
		DefaultHeartbeatThrottleInterval:   heartbeatThrottle,
		WorkerStopTimeout:                  stopGrace,
		StickyScheduleToStartTimeout:       stickyTimeout,
		MaxConcurrentActivityTaskPollers:   pollers,
		MaxConcurrentWorkflowTaskPollers:   pollers,
		MaxConcurrentActivityExecutionSize: concurrentActivities,
		OnFatalError:                       func(err error) { w.fatal <- err },
	}
}

// Run polls for work until ctx ends, then stops. It returns nil after an orderly
// stop, and an error when the worker cannot start or the engine refuses it.
func (w *Worker) Run(ctx context.Context) error {
	defer w.Stop()
	if err := w.temporal.Start(); err != nil {
		return fmt.Errorf("start the worker: %w", err)
	}
	go w.createReconcilers(ctx)
	w.log.Info("worker started", zap.String("identity", w.identity), zap.String("taskQueue", engine.TaskQueue))
	select {
	case <-ctx.Done():
		w.log.Info("worker stopping, another one can go on", zap.Duration("grace", stopGrace))
		return nil
	case err := <-w.fatal:
		return fmt.Errorf("the engine does not let this worker go on: %w", err)
	}
}

// Stop stops polling, tells running activities to hand over, waits for them up
// to the grace period of 10 s, and closes the watches. Run calls it by itself.
func (w *Worker) Stop() {
	w.stop.Do(func() {
		w.temporal.Stop()
		w.clusters.Close()
	})
}

// identify returns the name of this process, as the Web UI shows it.
func identify() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("name this worker after its host: %w", err)
	}
	return fmt.Sprintf("ebb-worker@%s:%d", host, os.Getpid()), nil
}
