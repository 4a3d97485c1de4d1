// Command bench has kubectl and Ebb do the same work on the same cluster, one
// after the other, and prints how long each took, how near that is to what the
// disruption budgets make possible, and what it cost the API server.
//
// The cluster is the sandbox: a real kube-apiserver, etcd, controllers and
// scheduler, with pods that are ready two seconds after their start and gone one
// second after their deletion. kubectl is built from the same pinned module. Ebb
// is the product: an operation through Temporal, done by a worker process. The
// rows are also written as JSON to the file that BENCH_JSON names. PROFILE=<path>
// writes CPU profiles of the worker to <path>-<cluster>.pprof.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

func main() {
	selected := flag.String("rows", "", "rows to run, separated by commas (default all): "+strings.Join(rowNames(), ", "))
	worker := flag.String("worker", "", "be a worker and write a CPU profile to this file (see PROFILE)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var err error
	if *worker != "" {
		err = profiledWorker(ctx, *worker)
	} else {
		err = run(ctx, *selected)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run runs the rows. What was measured before a row failed is reported all the same.
func run(ctx context.Context, selected string) (err error) {
	dir, err := os.MkdirTemp("", "ebb-bench-")
	if err != nil {
		return err
	}
	if selected == tunnelRow { // it needs no programs
		return errors.Join(benchTunnel(ctx, dir, os.Stdout), os.RemoveAll(dir))
	}
	chosen, err := selectRows(selected)
	if err != nil {
		return err
	}
	if err := findPrograms(); err != nil {
		return err
	}
	b := &runner{dir: dir}
	var outcomes []result
	for _, r := range chosen {
		logProgress("%s ...", r.work)
		o, failed := b.measure(ctx, r)
		if failed != nil {
			err = fmt.Errorf("row %s: %w (logs are in %s)", r.name, failed, dir)
			break
		}
		outcomes = append(outcomes, o)
	}
	err = errors.Join(err, b.deleteCluster(), report(os.Stdout, outcomes), writeJSON(os.Getenv("BENCH_JSON"), outcomes))
	if err == nil {
		err = os.RemoveAll(dir)
	}
	return err
}

// findPrograms makes EBB_BIN point at .bin of the working directory when it is not set.
func findPrograms() error {
	dir := os.Getenv("EBB_BIN")
	if dir == "" {
		dir = ".bin"
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	for _, program := range []string{"kubectl", "ebb-worker"} {
		// #nosec G703 -- whoever sets EBB_BIN may run what is in it
		if _, err := os.Stat(filepath.Join(dir, program)); err != nil {
			return fmt.Errorf("%s is not in %s: run `make build tools` in the repository, or name the directory with EBB_BIN", program, dir)
		}
	}
	return os.Setenv("EBB_BIN", dir)
}

func writeJSON(path string, outcomes []result) error {
	if path == "" {
		return nil
	}
	data, err := json.MarshalIndent(outcomes, "", "  ")
	if err != nil {
		return err
	}
	// #nosec G703 -- whoever sets BENCH_JSON may write there
	if err := os.WriteFile(path, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("write BENCH_JSON: %w", err)
	}
	return nil
}

// logProgress tells on stderr what is going on, which takes minutes.
func logProgress(format string, args ...any) { fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...) }
