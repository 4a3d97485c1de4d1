package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"go.temporal.io/sdk/client"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sync/errgroup"

	"ebb/internal/command"
	"ebb/internal/config"
	"ebb/internal/embedded"
	"ebb/internal/engine"
	"ebb/internal/logging"
	"ebb/internal/workers"
)

// dev is the engine, its Web UI and a worker in this process.
type dev struct {
	*app
	options  embedded.Options
	noWorker bool
	logLevel string
}

func newDev(a *app) *cobra.Command {
	d := &dev{app: a}
	cmd := &cobra.Command{
		Annotations: map[string]string{hereOnly: "yes"},
		Use:         "dev", Short: "Run the engine, its Web UI and a worker in this process",
		Long: `Run everything that operations need in one process: a Temporal engine that keeps its
state in a file, its Web UI, and a worker for the clusters in ebb.yaml. Stop it with
Ctrl-C or SIGTERM, or kill it: operations go on when it is started again.

The engine listens on loopback only, because it has no authentication of its own.
Without an ebb.yaml the engine and the Web UI run, and no cluster is known.`,
		Args: arguments(0, 0), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error { return d.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&d.options.Host, "host", "127.0.0.1", "address to listen on")
	flags.IntVar(&d.options.Port, "port", 7233, "port of the engine; 0 = a free one")
	flags.IntVar(&d.options.UIPort, "ui-port", 8233, "port of the Web UI; 0 = a free one, -1 = no Web UI")
	flags.StringVar(&d.options.Dir, "state-dir", "", "where the engine keeps its file (default $XDG_STATE_HOME/ebb, else ~/.local/state/ebb)")
	flags.BoolVar(&d.noWorker, "no-worker", false, "run the engine and the Web UI alone; ebb-worker does the work")
	flags.StringVar(&d.logLevel, "log-level", "info", "log what is at least this important: debug, info, warn or error")
	return cmd
}

func (d *dev) run(ctx context.Context) error {
	if d.verbose {
		d.logLevel = "debug"
	}
	var err error
	if d.log, err = logging.New(d.logLevel); err != nil {
		return &usageError{command: "ebb dev", text: err.Error()}
	}
	if d.options.Dir == "" {
		if d.options.Dir, err = embedded.DefaultDir(); err != nil {
			return err
		}
	}
	var file *config.File
	if !d.noWorker {
		if file, err = d.configIfAny(); err != nil {
			return err
		}
	}
	d.options.Log = d.log
	if !d.verbose {
		d.options.Log = d.log.WithOptions(zap.IncreaseLevel(zapcore.WarnLevel)) // the engine has much to say
	}
	server, err := embedded.Start(ctx, d.options)
	if err != nil {
		return err
	}
	defer server.Stop()
	d.client, err = engine.Dial(ctx, d.options.Log, engine.Options{Address: server.Address(), Namespace: server.Namespace()})
	if err != nil {
		return err
	}
	return d.serve(ctx, server, file)
}

// serve prints where everything is, and works until ctx ends.
func (d *dev) serve(ctx context.Context, server *embedded.Server, file *config.File) error {
	command.Printf(d.out, "engine   %s  (namespace %s, state in %s)\n", server.Address(), server.Namespace(), d.options.Dir)
	if server.UI() != "" {
		command.Printf(d.out, "Web UI   %s\n", server.UI())
	}
	group, ctx := errgroup.WithContext(ctx)
	if d.noWorker {
		command.Printf(d.out, "worker   none here: start ebb-worker\n")
	} else {
		command.Printf(d.out, "worker   %s\n", describe(file))
		worker, err := d.worker(d.client, server.Namespace(), file)
		if err != nil {
			return err
		}
		group.Go(func() error { return worker.Run(ctx) })
	}
	command.Printf(d.out, "ready: Ctrl-C stops it; operations go on when it is started again\n")
	group.Go(func() error { <-ctx.Done(); return nil })
	err := group.Wait()
	if err == nil {
		command.Printf(d.out, "stopped\n")
	}
	return err
}

func (d *dev) worker(c client.Client, namespace string, file *config.File) (*workers.Worker, error) {
	if file != nil {
		file.WithLogger(d.log)
	}
	return workers.New(workers.Options{Client: c, Namespace: namespace, Config: file, Log: d.log})
}

// configIfAny is nil when nobody named a configuration and there is none.
func (d *dev) configIfAny() (*config.File, error) {
	file, err := d.config()
	named := d.configPath != "" || os.Getenv("EBB_CONFIG") != ""
	if errors.Is(err, fs.ErrNotExist) && !named {
		d.notice(err.Error() + "; going on without: no cluster is known")
		return nil, nil //nolint:nilnil // no file and no error is what the comment says
	}
	return file, err
}

// describe names the clusters that the worker is for.
func describe(file *config.File) string {
	if file == nil {
		return "here, for no cluster"
	}
	current, err := file.Current()
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("here, for %s (from %s)", strings.Join(current.ClusterNames(), ", "), file.Path())
}
