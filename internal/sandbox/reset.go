package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/sandbox/nodedir"
)

// Reset puts the machines and their nodes back to what Start made: machines that
// were destroyed are there again, their nodes join anew, and every node has the
// first version and an empty journal. What else is in the cluster stays, pods
// included. It takes about a second, where a new sandbox takes four.
func (s *Sandbox) Reset(ctx context.Context) error {
	s.teardown.Lock()
	defer s.teardown.Unlock()
	for _, name := range s.nodeNames {
		if err := s.resetMachine(ctx, s.machines[name]); err != nil {
			return fmt.Errorf("reset machine %s: %w", name, err)
		}
	}
	for _, name := range s.nodeNames {
		if err := s.resetNode(ctx, s.machines[name].info); err != nil {
			return fmt.Errorf("reset node %s: %w", name, err)
		}
	}
	if err := s.resetVersion(ctx); err != nil {
		return fmt.Errorf("reset %s: %w", kubeadmConfigName, err)
	}
	return s.awaitNodes(ctx)
}

func (s *Sandbox) resetMachine(ctx context.Context, m *Machine) error {
	killProcessesOf(m.dir.Bin())
	m.tornDown = false
	for _, err := range []error{
		nodedir.Unmark(m.dir.Destroyed()), nodedir.Unmark(m.dir.Stopped()), emptyHome(m.dir), m.dir.Restore(m.machineID, s.opts.Version), s.layOut(m.dir),
	} {
		if err != nil {
			return err
		}
	}
	m.ssh.drop()
	if m.api != nil {
		if err := m.api.open(ctx); err != nil {
			return err
		}
	}
	return m.ssh.open(ctx)
}

// emptyHome removes what was left in a node's login directory, in its journal
// and in apt's cache.
func emptyHome(d nodedir.Dir) error {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		if path := filepath.Join(string(d), entry.Name()); path != d.File() {
			errs = append(errs, os.RemoveAll(path))
		}
	}
	return errors.Join(append(errs, os.RemoveAll(d.Archives()), nodedir.Unmark(d.Journal()))...)
}

// resetNode makes the node when it is not in the cluster, else writes over it.
func (s *Sandbox) resetNode(ctx context.Context, info nodedir.Info) error {
	nodes := s.Client().CoreV1().Nodes()
	return retryOnConflict(ctx, func() error {
		fresh := nodeObject(info, s.opts.Version, s.machines[info.Name].ssh.address)
		node, err := nodes.Get(ctx, info.Name, meta.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = nodes.Create(ctx, fresh, meta.CreateOptions{})
			return err
		}
		if err != nil {
			return err
		}
		node.Labels, node.Annotations = fresh.Labels, nil
		node.Spec.Unschedulable, node.Spec.Taints = false, fresh.Spec.Taints
		if node, err = nodes.Update(ctx, node, meta.UpdateOptions{}); err != nil {
			return err
		}
		node.Status.NodeInfo = fresh.Status.NodeInfo
		_, err = nodes.UpdateStatus(ctx, node, meta.UpdateOptions{})
		return err
	})
}

func (s *Sandbox) resetVersion(ctx context.Context) error {
	maps := s.Client().CoreV1().ConfigMaps(meta.NamespaceSystem)
	return retryOnConflict(ctx, func() error {
		m, err := maps.Get(ctx, kubeadmConfigName, meta.GetOptions{})
		if err != nil {
			return err
		}
		m.Data = kubeadmConfig(s.opts.Version)
		_, err = maps.Update(ctx, m, meta.UpdateOptions{})
		return err
	})
}

// retryOnConflict repeats a read and write until nobody else has written in between.
func retryOnConflict(ctx context.Context, change func() error) error {
	for {
		if err := change(); !apierrors.IsConflict(err) || ctx.Err() != nil {
			return err
		}
	}
}

// awaitNodes waits until every node is Ready and schedulable.
func (s *Sandbox) awaitNodes(ctx context.Context) error {
	for _, name := range s.nodeNames {
		if err := waitFor(ctx, s.plane.ended, s.Client().CoreV1().Nodes(), name, readyAndUntainted); err != nil {
			return fmt.Errorf("wait for node %s: %w", name, err)
		}
	}
	return nil
}
