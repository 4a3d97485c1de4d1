package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/clusterstate"
	"ebb/internal/config"
	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/internal/sandbox"
	"ebb/internal/testbed"
)

const (
	apiDowntime = 3 * time.Second // of the kube-apiserver, before it starts
	sshDowntime = time.Second
	runTimeout  = 6 * time.Minute // of one operation; see deploy for what takes two
)

// scenario is one of the two operations that faults are tried on.
type scenario string

const (
	scaleDown scenario = "scale-down"
	upgrade   scenario = "upgrade"
)

// The clusters have one control plane and four workers, and three of those go.
const (
	clusterWorkers = 4
	leaving        = 3
	startVersion   = "1.36.3"
	targetVersion  = "1.37.2"
)

func (o scenario) request(id string) ops.Request {
	r := ops.Request{ID: id, Cluster: testbed.ClusterName}
	if o == upgrade {
		r.Kind, r.Target = operation.KindUpgrade, targetVersion
	} else {
		r.Kind, r.Count = operation.KindScaleDown, leaving
	}
	return r
}

// environment is a cluster, an engine and a worker of its own. Runs are made on it
// one after another.
type environment struct {
	dir              string
	bed              *testbed.Bed
	injector         *injector
	worker           *testbed.Process
	pods             pinned // as they were when the run began
	runs             int
	controllersStale bool // the API server was killed, and its controllers may not have come back to it

	recovery    sync.WaitGroup // brings back what a fault has taken away
	mu          sync.Mutex
	recoveryErr error
}

// startEnvironment starts everything in an empty directory.
func startEnvironment(ctx context.Context, dir string) (_ *environment, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	env := &environment{dir: dir}
	socket := filepath.Join(dir, "injector.sock")
	if env.injector, err = newInjector(socket); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	env.bed, err = testbed.Start(ctx, testbed.Options{
		Dir: dir, EngineProcess: true, WorkerCommand: []string{self}, WorkerEnv: []string{injectorEnv + "=" + socket},
		Sandbox: sandbox.Options{
			Version: startVersion, ControlPlanes: 1, Workers: clusterWorkers, ScriptDelay: 200 * time.Millisecond,
			PodReadyDelay: 50 * time.Millisecond, PodDeleteDelay: 50 * time.Millisecond,
		},
		Edit: func(c *config.Cluster) {
			c.Drain.Timeout = config.DefaultDrainTimeout
			c.Upgrade.SteadyInterval = config.Duration(10 * time.Millisecond)
		},
	})
	if err != nil {
		return nil, errors.Join(err, env.injector.close())
	}
	err = env.bed.Sandbox.SetHooks(sandbox.Hooks{
		CommandEnded: func(node string) { env.injector.machineActed(node, command) },
		InfraDone:    func(node, _ string) { env.injector.machineActed(node, infrastructure) },
	})
	if err == nil {
		err = env.deploy(ctx)
	}
	if err == nil {
		err = env.startWorker(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, env.stop())
	}
	return env, nil
}

func (env *environment) stop() error {
	env.recovery.Wait()
	return errors.Join(env.bed.Stop(), env.injector.close())
}

func (env *environment) startWorker(ctx context.Context) (err error) {
	env.worker, err = env.bed.Worker(ctx)
	return err
}

// deploy gives every worker two pods that can be nowhere else, so that a node that
// was drained can be told by them, and a budget something to refuse.
//
// The budget can make a run take two minutes: when the worker dies between the API
// server's two writes of an eviction, to the budget and to the pod, the disruption
// controller waits that long before it counts the pod as one that has stayed.
func (env *environment) deploy(ctx context.Context) error {
	workloads := []sandbox.Workload{{Name: "web", Replicas: webReplicas, Spread: true, Budget: &sandbox.Budget{MaxUnavailable: "1"}}}
	for i := range clusterWorkers {
		node := fmt.Sprintf("w%d", i+1)
		workloads = append(workloads, sandbox.Workload{Name: pinnedTo + node, Replicas: pinnedReplicas, Nodes: []string{node}})
	}
	for _, w := range workloads {
		if err := env.bed.Sandbox.Deploy(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

// runWithFault runs an operation on a fresh cluster to its end, with a fault at a
// point unless that is nil. It returns the state in the end, when everything is up
// again, and the trace.
func (env *environment) runWithFault(ctx context.Context, op scenario, p *point, f fault) (endState, []stepExecution, error) {
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	if err := env.reset(ctx); err != nil {
		return endState{}, nil, fmt.Errorf("reset the cluster: %w", err)
	}
	env.runs++
	id := fmt.Sprintf("%s-%d", op, env.runs)
	env.injector.arm(id, p, func(node string) Reply { return env.inject(ctx, p, f, node) })
	end, err := env.runOperation(ctx, op.request(id))
	seen := env.injector.disarm()
	env.recovery.Wait()
	err = errors.Join(err, env.recoveryErr)
	if err == nil && p != nil && !seen.Injected {
		err = errors.New("the operation ended and never came to the point")
	}
	if err != nil {
		return endState{}, seen.Trace, err
	}
	got, err := env.endState(ctx, id, end, seen)
	return got, seen.Trace, err
}

// runOperation starts an operation and waits for its end.
func (env *environment) runOperation(ctx context.Context, r ops.Request) (end ops.Operation, err error) {
	if _, _, err := env.bed.Ops.Start(ctx, r); err != nil {
		return end, err
	}
	if err := env.bed.Ops.Watch(ctx, r.ID, func(o ops.Operation) { end = o }); err != nil {
		return end, fmt.Errorf("%s did not end: %w; last seen: %s", r.ID, err, pretty(end))
	}
	return end, nil
}

// inject makes a fault happen and returns as soon as it has happened. What it has
// taken away comes back meanwhile.
func (env *environment) inject(ctx context.Context, p *point, f fault, node string) Reply {
	switch f {
	case killWorker:
		env.keepError(env.worker.Kill())
		env.keepError(env.startWorker(ctx))
	case killEngine:
		env.keepError(env.bed.KillEngine())
		env.keepError(env.bed.StartEngine(ctx))
	case killAPI:
		env.controllersStale = true
		killed := make(chan struct{})
		env.recovery.Go(func() {
			env.keepError(env.bed.Sandbox.KillAPIServer(ctx, apiDowntime, func() { close(killed) }))
		})
		<-killed
		return Reply{DropResponse: p.When == inside}
	case cutSSH:
		m := env.bed.Sandbox.Machine(node)
		env.keepError(m.SetReachable(false))
		env.recovery.Go(func() {
			time.Sleep(sshDowntime)
			env.keepError(m.SetReachable(true))
		})
	}
	return Reply{}
}

// keepError keeps an error of a fault or of the recovery from it: the run cannot be judged.
func (env *environment) keepError(err error) {
	env.mu.Lock()
	defer env.mu.Unlock()
	env.recoveryErr = errors.Join(env.recoveryErr, err)
}

// reset makes the cluster as new: nodes, machines, workloads, and no Lease.
func (env *environment) reset(ctx context.Context) error {
	env.recoveryErr = nil
	if env.controllersStale {
		if err := env.bed.Sandbox.RestartControllers(); err != nil {
			return err
		}
		env.controllersStale = false
	}
	if err := env.bed.Sandbox.Reset(ctx); err != nil {
		return err
	}
	client := env.bed.Sandbox.Client()
	err := client.CoordinationV1().Leases(clusterstate.Namespace).Delete(ctx, clusterstate.LeaseName, meta.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	// Pods that wait for a node to come back would wait longer the longer they have waited.
	now := int64(0)
	err = client.CoreV1().Pods(sandbox.Namespace).DeleteCollection(ctx, meta.DeleteOptions{GracePeriodSeconds: &now},
		meta.ListOptions{FieldSelector: "status.phase=Pending"})
	if err != nil {
		return err
	}
	return env.waitForPods(ctx)
}
