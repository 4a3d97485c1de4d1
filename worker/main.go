// Command ebb-worker runs Ebb's workflows and activities for a Temporal engine.
package main

import (
	"context"
	"io"
	"os"

	"go.uber.org/zap"

	"ebb/internal/command"
	"ebb/internal/config"
	"ebb/internal/workers"
)

// version is set by the linker.
var version = "unknown"

// about is printed above the flags.
const about = `ebb-worker runs the operations of Ebb: it takes work from a Temporal engine and
touches the clusters in ebb.yaml. Any number of workers may run at once.

The engine is named by TEMPORAL_ADDRESS (default localhost:7233), TEMPORAL_NAMESPACE,
TEMPORAL_API_KEY, TEMPORAL_TLS_* or a profile named by TEMPORAL_PROFILE.

SIGTERM and SIGINT stop it in an orderly way: running activities hand over to
another worker, or wait for one. A second signal exits at once; that is safe too.

Flags:
`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	return command.Server{Name: "ebb-worker", About: about, Version: version, Serve: serve}.Run(args, stdout, stderr)
}

// serve connects and works until ctx ends.
func serve(ctx context.Context, file *config.File, log *zap.Logger) error {
	return workers.Serve(ctx, workers.Options{Config: file, Log: log})
}
