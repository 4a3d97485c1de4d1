package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"

	"go.uber.org/zap"

	"ebb/internal/config"
	"ebb/internal/workers"
)

// workerCommand returns how the worker of a cluster is started: nil means ebb-worker.
// With PROFILE=<path> this program is the worker, and its CPU profile is written
// to <path>-<cluster>.pprof when the rows on that cluster are done.
func workerCommand(cluster string) ([]string, error) {
	path := os.Getenv("PROFILE")
	if path == "" {
		return nil, nil
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	return []string{self, "-worker", path + "-" + cluster + ".pprof"}, err
}

// profiledWorker does what ebb-worker does, until ctx ends.
func profiledWorker(ctx context.Context, path string) (err error) {
	out, err := os.Create(path) // #nosec G304 -- whoever sets PROFILE may write there
	if err != nil {
		return fmt.Errorf("write PROFILE: %w", err)
	}
	if err := pprof.StartCPUProfile(out); err != nil {
		return errors.Join(err, out.Close())
	}
	defer func() {
		pprof.StopCPUProfile()
		err = errors.Join(err, out.Close())
	}()
	file, err := config.Open(config.Path(""))
	if err != nil {
		return err
	}
	return workers.Serve(ctx, workers.Options{Config: file, Log: zap.NewNop()})
}
