package config

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func drainTimeout(t *testing.T, f *File) time.Duration {
	t.Helper()
	cfg, err := f.Current()
	require.NoError(t, err)
	require.Len(t, cfg.Clusters, 1)
	return cfg.Clusters[0].Drain.Timeout.D()
}

func TestFileFollowsChanges(t *testing.T) {
	set := func(path, drain string) {
		require.NoError(t, os.WriteFile(path, []byte(minimal("    drain: {timeout: "+drain+"}\n")), 0o600))
	}
	core, logs := observer.New(zap.InfoLevel)
	path := write(t, minimal(""))
	f, err := Open(path)
	require.NoError(t, err)
	f.WithLogger(zap.New(core))
	require.Equal(t, path, f.Path())

	first, err := f.Current()
	require.NoError(t, err)
	again, err := f.Current()
	require.NoError(t, err)
	require.Same(t, first, again, "not parsed again when nothing has changed")

	// Same size, same modification time: only the contents differ.
	moment := time.Unix(1_700_000_000, 0)
	for _, drain := range []string{"10s", "20s"} {
		set(path, drain)
		require.NoError(t, os.Chtimes(path, moment, moment))
		want, err := time.ParseDuration(drain)
		require.NoError(t, err)
		require.Equal(t, want, drainTimeout(t, f))
	}
	require.Equal(t, 2, logs.FilterMessage("configuration read again").Len())

	broken := func() int { return logs.FilterMessage("configuration is broken, the last good one stays in use").Len() }
	set(path, "30")
	for range 3 {
		require.Equal(t, 20*time.Second, drainTimeout(t, f), "the last good one")
	}
	require.Equal(t, 1, broken(), "once per change")
	require.ErrorContains(t, f.LoadError(), "a duration needs a unit")

	set(path, "31")
	require.Equal(t, 20*time.Second, drainTimeout(t, f))
	require.Equal(t, 2, broken(), "another change")

	require.NoError(t, os.Remove(path))
	for range 3 {
		require.Equal(t, 20*time.Second, drainTimeout(t, f))
	}
	require.Equal(t, 3, broken())
	require.ErrorIs(t, f.LoadError(), os.ErrNotExist)

	set(path, "40s")
	require.NoError(t, f.LoadError())
	require.Equal(t, 40*time.Second, drainTimeout(t, f))
}

// Kubernetes swaps a symlink to change a mounted ConfigMap.
func TestFileFollowsSymlink(t *testing.T) {
	dir := t.TempDir()
	for name, drain := range map[string]string{"a": "10s", "b": "20s"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(minimal("    drain: {timeout: "+drain+"}\n")), 0o600))
	}
	path := filepath.Join(dir, "ebb.yaml")
	require.NoError(t, os.Symlink("a", path))
	f, err := Open(path)
	require.NoError(t, err)
	require.Equal(t, 10*time.Second, drainTimeout(t, f))
	require.NoError(t, os.Symlink("b", path+".new"))
	require.NoError(t, os.Rename(path+".new", path))
	require.Equal(t, 20*time.Second, drainTimeout(t, f))
}

func TestFileForMany(t *testing.T) {
	path := write(t, minimal(""))
	f, err := Open(path)
	require.NoError(t, err)
	var readers sync.WaitGroup
	for range 8 {
		readers.Go(func() {
			for range 50 {
				_, err := f.Current()
				require.NoError(t, err)
			}
		})
	}
	for range 20 {
		require.NoError(t, os.WriteFile(path, []byte(minimal("    drain: {parallel: 2}\n")), 0o600))
	}
	readers.Wait()
	require.NoError(t, f.LoadError())
}

func TestOpenNeedsAGoodFile(t *testing.T) {
	_, err := Open(write(t, "clusters: []\n"))
	require.ErrorContains(t, err, "at least one cluster is required")
	_, err = Open(filepath.Join(t.TempDir(), "none.yaml"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = new(File).Current()
	require.EqualError(t, err, "configuration was never opened")
}
