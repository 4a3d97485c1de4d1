// Package sandbox runs a real Kubernetes control plane on this host without
// root: etcd, kube-apiserver, controllers and scheduler as child processes,
// simulated kubelets (kwok), and an SSH server per node with fakes of kubeadm,
// apt-get and the like (nodetools). It is what the demo and the end to end tests
// work on; nothing else may know of it.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"ebb/internal/cluster"
	"ebb/internal/wait"
)

// startTimeout bounds a start; it takes about 4 seconds on two idle cores, a minute on busy ones.
const startTimeout = 3 * time.Minute

// Options of a sandbox.
type Options struct {
	Dir            string        // holds everything; must be empty or missing
	BinDir         string        // programs of the sandbox; empty = see findPrograms
	Version        string        // of the nodes, default 1.36.3
	ControlPlanes  int           // default 1; they share one kube-apiserver
	Workers        int           // default 3
	PodReadyDelay  time.Duration // from a pod's start until it is ready
	PodDeleteDelay time.Duration // from a pod's deletion until it is gone
	ScriptDelay    time.Duration // how long a kubeadm upgrade takes
	CKS            bool          // nodes as CloudStack's Kubernetes service makes them; needs kubectl
	APIServerArgs  []string      // added to those of the kube-apiserver
	Network        *Network      // where the machines are; nil = on loopback, each with a port of its own
	Log            *zap.Logger   // nil = silent

	programs map[string]string // path by name
}

// Network is a network for the machines of a sandbox, in which each has an address of its own.
type Network struct {
	Address func(i int) string // of the machine i, from 0
	Port    int                // of SSH, on all machines
	Listen  func(ctx context.Context, address string) (net.Listener, error)
}

// complete sets defaults, makes the directories and finds the programs.
func (o *Options) complete() error {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	if o.Version == "" {
		o.Version = "1.36.3"
	}
	o.ControlPlanes = max(1, o.ControlPlanes)
	if o.Workers <= 0 {
		o.Workers = 3
	}
	if o.Dir == "" {
		return errors.New("a sandbox needs a directory")
	}
	var err error
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return err
	}
	names := programNames
	if o.CKS {
		names = append(slices.Clone(names), "kubectl")
	}
	if o.programs, err = findPrograms(o.BinDir, names); err != nil {
		return err
	}
	for _, dir := range []string{"logs", "ssh", "nodes"} {
		if err := os.MkdirAll(filepath.Join(o.Dir, dir), 0o700); err != nil {
			return err
		}
	}
	return nil
}

// Sandbox is a running cluster with its machines.
type Sandbox struct {
	opts      Options
	plane     *controlPlane
	lock      *os.File // held while this process runs, which the nodes' programs ask
	machines  map[string]*Machine
	nodeNames []string // control planes, then workers
	sshKey    string   // private key file of the only SSH user
	stopped   sync.Once
	unwatch   func()     // ends the watch for destroyed machines
	teardown  sync.Mutex // one teardown of machines, or reset, at a time
	hooks     hooks
}

// Start makes a cluster in an empty directory and waits until its nodes are
// Ready and pods can be made. On an error nothing is left running.
func Start(ctx context.Context, opts Options) (_ *Sandbox, err error) {
	began := time.Now()
	if err := requireEmpty(opts.Dir); err != nil {
		return nil, err
	}
	if err := opts.complete(); err != nil {
		return nil, fmt.Errorf("start sandbox: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s := &Sandbox{opts: opts, machines: map[string]*Machine{}, unwatch: func() {}}
	defer func() {
		if err != nil {
			s.Stop()
		}
	}()
	for _, step := range []func(context.Context) error{s.holdLock, s.startPlane, s.addMachines, s.addSystem, s.addISOs, s.awaitReady} {
		if err := step(ctx); err != nil {
			if s.plane != nil {
				if ended := s.plane.ended(); ended != nil {
					err = errors.Join(err, ended)
				}
			}
			return nil, fmt.Errorf("start sandbox in %s: %w", opts.Dir, err)
		}
	}
	opts.Log.Info("sandbox: ready", zap.Int("controlPlanes", opts.ControlPlanes), zap.Int("workers", opts.Workers), zap.Duration("took", time.Since(began).Round(10*time.Millisecond)))
	return s, nil
}

// requireEmpty returns an error when a directory holds something: an earlier sandbox
// is not continued.
func requireEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("start sandbox: %w", err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("start sandbox: %s is not empty (it holds %s): remove it or name another directory", dir, entries[0].Name())
	}
	return nil
}

func (s *Sandbox) holdLock(context.Context) (err error) {
	if s.lock, err = os.OpenFile(filepath.Join(s.opts.Dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return err
	}
	return syscall.Flock(int(s.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) // #nosec G115 -- a descriptor is small
}

func (s *Sandbox) startPlane(ctx context.Context) error {
	authority, err := newPKI(filepath.Join(s.opts.Dir, "pki"))
	if err != nil {
		return err
	}
	s.plane = &controlPlane{opts: s.opts, launcher: &launcher{dir: s.opts.Dir, log: s.opts.Log}, pki: authority}
	return s.plane.start(ctx)
}

// awaitReady waits until every node is Ready and schedulable and pods can be made.
func (s *Sandbox) awaitReady(ctx context.Context) error {
	client := s.Client()
	for _, namespace := range []string{"default", "kube-system"} {
		// The controllers make it; pods are refused before.
		err := waitFor(ctx, s.plane.ended, client.CoreV1().ServiceAccounts(namespace), "default", func(*core.ServiceAccount) bool { return true })
		if err != nil {
			return fmt.Errorf("wait for the service account of %s: %w", namespace, err)
		}
	}
	if err := s.awaitNodes(ctx); err != nil {
		return err
	}
	s.unwatch = wait.Every(destroyedInterval, s.tearDownDestroyed)
	return nil
}

// readyAndUntainted reports whether a node is Ready and pods can be scheduled to it.
func readyAndUntainted(n *core.Node) bool {
	for _, taint := range n.Spec.Taints {
		if taint.Key == core.TaintNodeNotReady {
			return false
		}
	}
	return cluster.NodeReady(n)
}

// Stop ends everything the sandbox runs, also what runs on its nodes; the
// directory stays. It may be called more than once.
func (s *Sandbox) Stop() {
	s.stopped.Do(func() {
		s.unwatch()
		s.hooks.close()
		for _, m := range s.machines {
			m.ssh.close()
			if m.api != nil {
				m.api.close()
			}
		}
		if s.plane != nil {
			s.plane.stop()
		}
		for _, m := range s.machines {
			killProcessesOf(m.dir.Bin())
		}
		if s.lock != nil {
			if err := s.lock.Close(); err != nil {
				s.opts.Log.Warn("sandbox: release its lock", zap.Error(err))
			}
		}
	})
}

// Client returns a client of the kube-apiserver, with the rights of its administrator.
func (s *Sandbox) Client() kubernetes.Interface { return s.plane.client }

// Kubeconfig returns the path of the administrator's kubeconfig (mode 0600).
func (s *Sandbox) Kubeconfig() string { return s.plane.adminKubeconfig() }

// Dir returns the directory that holds everything, logs included.
func (s *Sandbox) Dir() string { return s.opts.Dir }

// Machine returns the machine of a node; nil for a name the sandbox never had.
func (s *Sandbox) Machine(node string) *Machine { return s.machines[node] }

// Nodes returns the Node objects that are in the cluster now, sorted by name.
func (s *Sandbox) Nodes(ctx context.Context) ([]core.Node, error) {
	list, err := s.Client().CoreV1().Nodes().List(ctx, meta.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the nodes of the sandbox: %w", err)
	}
	return list.Items, nil
}

// RestartAPIServer stops the kube-apiserver and starts it again after the
// downtime, on the same port; it returns when the server is ready.
func (s *Sandbox) RestartAPIServer(ctx context.Context, downtime time.Duration) error {
	if err := s.plane.restartAPI(ctx, stopGrace, downtime, func() {}); err != nil {
		return fmt.Errorf("restart the kube-apiserver of the sandbox: %w", err)
	}
	return nil
}

// KillAPIServer is RestartAPIServer with SIGKILL: requests under way get no
// answer. It calls killed as soon as the server is dead.
func (s *Sandbox) KillAPIServer(ctx context.Context, downtime time.Duration, killed func()) error {
	if err := s.plane.restartAPI(ctx, 0, downtime, killed); err != nil {
		return fmt.Errorf("kill the kube-apiserver of the sandbox: %w", err)
	}
	return nil
}

// RestartControllers kills the controllers, the scheduler and the simulated kubelets
// and starts them again. After a restart of the kube-apiserver that is the way to
// have them see everything at once: their own watches come back with pauses that
// grow to half a minute.
func (s *Sandbox) RestartControllers() error {
	if err := s.plane.restartControllers(); err != nil {
		return fmt.Errorf("restart the controllers of the sandbox: %w", err)
	}
	return nil
}
