package testbed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/clusterstate"
	"ebb/internal/lease"
	"ebb/internal/version"
)

// Check returns what is wrong with the state of a test bed.
type Check func(context.Context, *Bed) error

// Verify runs all checks and returns all that is wrong.
func (b *Bed) Verify(ctx context.Context, checks ...Check) error {
	var errs []error
	for _, check := range checks {
		errs = append(errs, check(ctx, b))
	}
	return errors.Join(errs...)
}

// Record returns what the cluster's Lease says.
func (b *Bed) Record(ctx context.Context) (clusterstate.Record, error) {
	return lease.NewStore(b.Sandbox.Client(), time.Now).Get(ctx)
}

// InState checks the cluster's state, and that nobody holds it.
func InState(want clusterstate.State) Check {
	return func(ctx context.Context, b *Bed) error {
		record, err := b.Record(ctx)
		if err != nil {
			return err
		}
		if record.State != want || record.Holder != "" {
			return fmt.Errorf("the cluster is in state %s and held by %q, want %s and free", record.State, record.Holder, want)
		}
		return nil
	}
}

// TargetIs checks the recorded upgrade target; empty = none.
func TargetIs(want string) Check {
	return func(ctx context.Context, b *Bed) error {
		record, err := b.Record(ctx)
		if err == nil && string(record.Target) != want {
			err = fmt.Errorf("the upgrade target is %q, want %q", record.Target, want)
		}
		return err
	}
}

// OnlyCordoned checks that exactly these nodes are unschedulable.
func OnlyCordoned(want ...string) Check {
	return func(ctx context.Context, b *Bed) error {
		return b.eachNode(ctx, func(n *core.Node) error {
			expected := slices.Contains(want, n.Name)
			if n.Spec.Unschedulable != expected {
				return fmt.Errorf("node %s: unschedulable is %t, want %t", n.Name, n.Spec.Unschedulable, expected)
			}
			return nil
		})
	}
}

// AllAt checks that every node reports and records a version, except some.
func AllAt(version string, except ...string) Check {
	return func(ctx context.Context, b *Bed) error {
		return b.eachNode(ctx, func(n *core.Node) error {
			if slices.Contains(except, n.Name) {
				return nil
			}
			return nodeAt(n, version)
		})
	}
}

// NodeAt checks that one node reports and records a version.
func NodeAt(name, want string) Check {
	return func(ctx context.Context, b *Bed) error {
		n, err := b.Sandbox.Client().CoreV1().Nodes().Get(ctx, name, meta.GetOptions{})
		if err != nil {
			return err
		}
		return nodeAt(n, want)
	}
}

func nodeAt(n *core.Node, want string) error {
	reported, recorded := n.Status.NodeInfo.KubeletVersion, n.Annotations[clusterstate.AnnotationNodeVersion]
	if version.Of(reported) != version.Of(want) || recorded != want {
		return fmt.Errorf("node %s reports %s and records %q, want %s", n.Name, reported, recorded, want)
	}
	return nil
}

// Removed checks that nodes are gone and their machines destroyed.
func Removed(names ...string) Check {
	return func(ctx context.Context, b *Bed) error {
		var errs []error
		for _, name := range names {
			_, err := b.Sandbox.Client().CoreV1().Nodes().Get(ctx, name, meta.GetOptions{})
			switch {
			case err == nil:
				errs = append(errs, fmt.Errorf("node %s is still in the cluster", name))
			case !apierrors.IsNotFound(err):
				errs = append(errs, err)
			}
			if !b.Sandbox.Machine(name).Destroyed() {
				errs = append(errs, fmt.Errorf("the machine of %s is not destroyed", name))
			}
		}
		return errors.Join(errs...)
	}
}

// Ran checks how often a command has been run on a node, by its beginning.
func Ran(node, command string, times int) Check {
	return func(_ context.Context, b *Bed) error {
		count := 0
		for _, line := range b.Sandbox.Machine(node).Commands() {
			if strings.HasPrefix(line, command) {
				count++
			}
		}
		if count != times {
			return fmt.Errorf("%q ran %d times on %s, want %d", command, count, node, times)
		}
		return nil
	}
}

// AllAvailable checks that every replica of every Deployment in the default namespace
// becomes available within three minutes.
func AllAvailable() Check {
	return func(ctx context.Context, b *Bed) error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		missing := "the deployments could not be read"
		err := Poll(ctx, func() (bool, error) {
			list, err := b.Sandbox.Client().AppsV1().Deployments(meta.NamespaceDefault).List(ctx, meta.ListOptions{})
			if err != nil {
				return false, err
			}
			for _, d := range list.Items {
				if d.Status.AvailableReplicas != *d.Spec.Replicas {
					missing = fmt.Sprintf("deployment %s has %d of %d replicas", d.Name, d.Status.AvailableReplicas, *d.Spec.Replicas)
					return false, nil
				}
			}
			return true, nil
		})
		if err != nil {
			return fmt.Errorf("%s: %w", missing, err)
		}
		return nil
	}
}

func (b *Bed) eachNode(ctx context.Context, check func(*core.Node) error) error {
	list, err := b.Sandbox.Client().CoreV1().Nodes().List(ctx, meta.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	for i := range list.Items {
		errs = append(errs, check(&list.Items[i]))
	}
	return errors.Join(errs...)
}
