// Command ebb-worker runs Ebb's workflows and activities for a Temporal engine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"go.uber.org/zap"

	"ebb/internal/config"
	"ebb/internal/engine"
	"ebb/internal/logging"
	"ebb/internal/workers"
)

// version is set by the linker.
var version = "unknown"

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// usage is printed above the flags.
const usage = `ebb-worker runs the operations of Ebb: it takes work from a Temporal engine and
touches the clusters in ebb.yaml. Any number of workers may run at once.

The engine is named by TEMPORAL_ADDRESS (default localhost:7233), TEMPORAL_NAMESPACE,
TEMPORAL_API_KEY, TEMPORAL_TLS_* or a profile named by TEMPORAL_PROFILE.

SIGTERM and SIGINT stop it in an orderly way: running activities hand over to
another worker, or wait for one. A second signal exits at once; that is safe too.

Flags:
`

// options of the command line.
type options struct {
	config   string
	logLevel string
	version  bool
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	o, err := parseFlags(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitDone
	case err != nil:
		return exitUsage // flag has said what is wrong
	case o.version:
		tell(stdout, "ebb-worker %s\n", version)
		return exitDone
	}
	log, err := logging.New(o.logLevel)
	if err != nil {
		tell(stderr, "ebb-worker: %v\n", err)
		return exitUsage
	}
	ctx, release := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer release()
	context.AfterFunc(ctx, release) // a second signal has its default effect
	if err := serve(ctx, o, log); err != nil {
		tell(stderr, "ebb-worker: %v\n", err)
		return exitFailed
	}
	return exitDone
}

// tell prints for a person; when nobody reads it, nobody misses it.
func tell(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }

func parseFlags(args []string, stderr io.Writer) (options, error) {
	var o options
	var verbose bool
	flags := flag.NewFlagSet("ebb-worker", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.config, "config", "", "path of ebb.yaml (default $EBB_CONFIG, else ./ebb.yaml, else ~/.config/ebb/ebb.yaml)")
	flags.StringVar(&o.logLevel, "log-level", "info", "log what is at least this important: debug, info, warn or error")
	flags.BoolVar(&verbose, "v", false, "same as --log-level debug")
	flags.BoolVar(&o.version, "version", false, "print the version and exit")
	flags.Usage = func() {
		tell(stderr, "%s", usage)
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	if flags.NArg() > 0 {
		err := fmt.Errorf("unexpected argument %q", flags.Arg(0))
		tell(stderr, "ebb-worker: %v; see ebb-worker --help\n", err)
		return options{}, err
	}
	if verbose {
		o.logLevel = "debug"
	}
	return o, nil
}

// serve connects and works until ctx ends.
func serve(ctx context.Context, o options, log *zap.Logger) error {
	file, err := config.Open(config.Path(o.config))
	if err != nil {
		return err
	}
	settings, err := engine.Resolve(engine.Options{})
	if err != nil {
		return err
	}
	client, err := engine.Dial(ctx, log, engine.Options{})
	if err != nil {
		return err
	}
	defer client.Close()
	worker, err := workers.New(workers.Options{Client: client, Namespace: settings.Namespace, Config: file.WithLogger(log), Log: log})
	if err != nil {
		return err
	}
	return worker.Run(ctx)
}
