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
	"ebb/internal/ops"
	"ebb/internal/sandbox"
	"ebb/internal/testbed"
	"ebb/workflows"
)

const (
	apiDowntime = 3 * time.Second // of the kube-apiserver, before it starts
	sshDowntime = time.Second
	runTimeout  = 6 * time.Minute // of one operation; see deploy for what takes two
)

// operation is one of the two that faults are tried on.
type operation string

const (
	scaleDown operation = "scale-down"
	upgrade   operation = "upgrade"
)

// The clusters have one control plane and four workers, and three of those go.
const (
	clusterWorkers = 4
	leaving        = 3
	startVersion   = "1.36.3"
	targetVersion  = "1.37.2"
)

func (o operation) request(id string) ops.Request {
	r := ops.Request{ID: id, Cluster: testbed.ClusterName}
	if o == upgrade {
		r.Kind, r.Target = workflows.KindUpgrade, targetVersion
	} else {
		r.Kind, r.Count = workflows.KindScaleDown, leaving
	}
	return r
}

// lane is a cluster, an engine and a worker of its own, on which runs are made one
// after another.
type lane struct {
	dir    string
	bed    *testbed.Bed
	gate   *gate
	worker *testbed.Process
	pods   pinned // that were there when the run began
	runs   int
	stale  bool // the API server was killed, and its controllers may not have come back to it

	mending sync.WaitGroup // what brings back what a fault took
	mu      sync.Mutex
	broken  error // of the mending
}

// startLane starts everything in an empty directory.
func startLane(ctx context.Context, dir string) (_ *lane, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	l := &lane{dir: dir}
	socket := filepath.Join(dir, "gate.sock")
	if l.gate, err = newGate(socket); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	l.bed, err = testbed.Start(ctx, testbed.Options{
		Dir: dir, EngineProcess: true, WorkerCommand: []string{self}, WorkerEnv: []string{gateEnv + "=" + socket},
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
		return nil, errors.Join(err, l.gate.close())
	}
	err = l.bed.Sandbox.Tap(sandbox.Taps{
		Command: func(node string) { l.gate.tapped(node, command) },
		Infra:   func(node, _ string) { l.gate.tapped(node, machine) },
	})
	if err == nil {
		err = l.deploy(ctx)
	}
	if err == nil {
		err = l.startWorker(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, l.stop())
	}
	return l, nil
}

func (l *lane) stop() error {
	l.mending.Wait()
	return errors.Join(l.bed.Stop(), l.gate.close())
}

func (l *lane) startWorker(ctx context.Context) (err error) {
	l.worker, err = l.bed.Worker(ctx)
	return err
}

// deploy gives every worker two pods that can be nowhere else, so that a node that
// was drained can be told by them, and a budget something to refuse.
//
// The budget can make a run take two minutes: when the worker dies between the API
// server's two writes of an eviction, to the budget and to the pod, the disruption
// controller waits that long before it counts the pod as one that has stayed.
func (l *lane) deploy(ctx context.Context) error {
	workloads := []sandbox.Workload{{Name: "web", Replicas: webReplicas, Spread: true, Budget: &sandbox.Budget{MaxUnavailable: "1"}}}
	for i := range clusterWorkers {
		node := fmt.Sprintf("w%d", i+1)
		workloads = append(workloads, sandbox.Workload{Name: pinnedTo + node, Replicas: pinnedReplicas, Nodes: []string{node}})
	}
	for _, w := range workloads {
		if err := l.bed.Sandbox.Deploy(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

// run makes one run: an operation from a fresh cluster to its end, with a fault at
// a point unless that is nil. Its outcome is looked at when everything is up again.
func (l *lane) run(ctx context.Context, op operation, p *point, f fault) (outcome, []execution, error) {
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	if err := l.reset(ctx); err != nil {
		return outcome{}, nil, fmt.Errorf("reset the cluster: %w", err)
	}
	l.runs++
	id := fmt.Sprintf("%s-%d", op, l.runs)
	l.gate.arm(id, p, func(node string) Answer { return l.strike(ctx, p, f, node) })
	end, err := l.follow(ctx, op.request(id))
	seen := l.gate.disarm()
	l.mending.Wait()
	err = errors.Join(err, l.broken)
	if err == nil && p != nil && !seen.Struck {
		err = errors.New("the operation ended without coming to the point")
	}
	if err != nil {
		return outcome{}, seen.Trace, err
	}
	got, err := l.outcome(ctx, id, end, seen)
	return got, seen.Trace, err
}

// follow starts an operation and waits for its end.
func (l *lane) follow(ctx context.Context, r ops.Request) (end ops.Operation, err error) {
	if _, _, err := l.bed.Ops.Start(ctx, r); err != nil {
		return end, err
	}
	if err := l.bed.Ops.Watch(ctx, r.ID, func(o ops.Operation) { end = o }); err != nil {
		return end, fmt.Errorf("%s did not end: %w; last seen: %s", r.ID, err, pretty(end))
	}
	return end, nil
}

// strike carries a fault out and returns as soon as it has happened; what it took
// comes back meanwhile.
func (l *lane) strike(ctx context.Context, p *point, f fault, node string) Answer {
	switch f {
	case killWorker:
		l.failed(l.worker.Kill())
		l.failed(l.startWorker(ctx))
	case killEngine:
		l.failed(l.bed.KillEngine())
		l.failed(l.bed.StartEngine(ctx))
	case killAPI:
		l.stale = true
		killed := make(chan struct{})
		l.mending.Go(func() {
			l.failed(l.bed.Sandbox.KillAPIServer(ctx, apiDowntime, func() { close(killed) }))
		})
		<-killed
		return Answer{Lost: p.When == inside}
	case cutSSH:
		m := l.bed.Sandbox.Machine(node)
		l.failed(m.SetReachable(false))
		l.mending.Go(func() {
			time.Sleep(sshDowntime)
			l.failed(m.SetReachable(true))
		})
	}
	return Answer{}
}

func (l *lane) failed(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.broken = errors.Join(l.broken, err)
}

// reset makes the cluster as new: nodes, machines, workloads, and no Lease.
func (l *lane) reset(ctx context.Context) error {
	l.broken = nil
	if l.stale {
		if err := l.bed.Sandbox.RestartControllers(); err != nil {
			return err
		}
		l.stale = false
	}
	if err := l.bed.Sandbox.Reset(ctx); err != nil {
		return err
	}
	client := l.bed.Sandbox.Client()
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
	return l.settle(ctx)
}
