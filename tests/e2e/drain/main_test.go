// Package e2e tries Ebb on a real control plane: kube-apiserver, etcd,
// controller manager and scheduler, with kwok in place of the kubelets.
package e2e

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"ebb/internal/cluster"
	"ebb/internal/config"
	"ebb/internal/sandbox"
)

// shared is the one sandbox of all tests here, started by the first that needs it.
var shared struct {
	once     sync.Once
	dir      string
	box      *sandbox.Sandbox
	registry *cluster.Registry
	err      error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.registry != nil {
		shared.registry.Close()
	}
	if shared.box != nil {
		shared.box.Stop()
	}
	if shared.dir != "" {
		_ = os.RemoveAll(shared.dir) // of the temporary directory's owner, the next clean-up
	}
	os.Exit(code)
}

// sandboxFor is the shared sandbox: one control plane and four workers, whose
// pods are ready after two seconds and gone one second after their deletion.
func sandboxFor(t *testing.T) *sandbox.Sandbox {
	t.Helper()
	shared.once.Do(func() { shared.err = startShared() })
	require.NoError(t, shared.err)
	return shared.box
}

func startShared() (err error) {
	if shared.dir, err = os.MkdirTemp("", "ebb-e2e-"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	shared.box, err = sandbox.Start(ctx, sandboxOptions(filepath.Join(shared.dir, "sandbox"), 4))
	if err != nil {
		return err
	}
	path := filepath.Join(shared.dir, "ebb.yaml")
	if err := shared.box.WriteConfig(path, shared.box.Cluster("sandbox")); err != nil {
		return err
	}
	file, err := config.Open(path)
	if err != nil {
		return err
	}
	shared.registry = cluster.NewRegistry(file, zap.NewNop())
	return nil
}

func sandboxOptions(dir string, workers int) sandbox.Options {
	return sandbox.Options{
		Dir: dir, ControlPlanes: 1, Workers: workers, PodReadyDelay: 2 * time.Second, PodDeleteDelay: time.Second, Log: zap.NewNop(),
	}
}

// clusterFor is the shared sandbox as the worker sees it.
func clusterFor(t *testing.T) *cluster.Cluster {
	t.Helper()
	sandboxFor(t)
	c, err := shared.registry.Get(t.Context(), "sandbox")
	require.NoError(t, err)
	return c
}
