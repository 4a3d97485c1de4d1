package main

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"
	"go.temporal.io/sdk/client"
	"go.uber.org/zap"
	"golang.org/x/term"

	"ebb/internal/cluster"
	"ebb/internal/config"
	"ebb/internal/engine"
	"ebb/internal/forecast"
	"ebb/internal/logging"
	"ebb/internal/ops"
)

// app is what all commands share: the global flags, where they print, and the
// connection that is opened when first needed.
type app struct {
	out, errs io.Writer

	configPath string
	gateway    gatewayFlags
	output     string
	verbose    bool

	log      *zap.Logger
	file     *config.File
	client   client.Client
	reached  *cluster.Registry
	ops      ops.Client        // set by connect; a test sets it before
	views    forecast.Clusters // set by clusters
	listener func(string)      // who shows notices, when stderr alone would garble the screen
}

// notice tells a person what is of interest and no result.
func (a *app) notice(text string) {
	if a.listener != nil {
		a.listener(text)
		return
	}
	say(a.errs, text)
}

// validate checks the global flags; it is called before every command.
func (a *app) validate(cmd *cobra.Command) error {
	if err := a.gateway.validate(cmd); err != nil {
		return err
	}
	if a.output != "" && a.output != "json" {
		return usage(cmd, `--output %q: only "json" is known`, a.output)
	}
	if !a.verbose {
		return nil
	}
	var err error
	a.log, err = logging.New("debug")
	return err
}

func (a *app) json() bool { return a.output == "json" }

// connect opens the way to operations, once.
func (a *app) connect(ctx context.Context) (ops.Client, error) {
	if a.ops != nil {
		return a.ops, nil
	}
	if a.gateway.url != "" {
		through, err := a.through()
		if err != nil {
			return nil, err
		}
		a.ops = through
		return a.ops, nil
	}
	connected, namespace, err := engine.Connect(ctx, a.log)
	if err != nil {
		return nil, err
	}
	a.client, a.ops = connected, ops.NewTemporal(connected, namespace).WithNotices(a.notice)
	return a.ops, nil
}

// Close closes what was opened.
func (a *app) Close() {
	if a.reached != nil {
		a.reached.Close()
	}
	if a.client != nil {
		a.client.Close()
	}
}

func (a *app) config() (*config.File, error) { return config.Open(config.Path(a.configPath)) }

// clusters is how commands look at clusters.
func (a *app) clusters() (forecast.Clusters, error) {
	if a.views != nil {
		return a.views, nil
	}
	if a.gateway.url != "" {
		through, err := a.through()
		if err != nil {
			return nil, err
		}
		a.views = through.Clusters()
		return a.views, nil
	}
	registry, _, err := a.registry()
	if err != nil {
		return nil, err
	}
	a.views = forecast.NewLocal(registry, a.configured)
	return a.views, nil
}

// registry is access from here to the clusters in ebb.yaml, with their names in
// their order.
func (a *app) registry() (*cluster.Registry, []string, error) {
	names, err := a.configured()
	if err != nil {
		return nil, nil, err
	}
	if a.reached == nil {
		a.reached = cluster.NewRegistry(a.file, a.log)
	}
	return a.reached, names, nil
}

// configured are the names of the clusters in ebb.yaml, in their order.
func (a *app) configured() ([]string, error) {
	if a.file == nil {
		file, err := a.config()
		if err != nil {
			return nil, err
		}
		a.file = file
	}
	current, err := a.file.Current()
	if err != nil {
		return nil, err
	}
	return current.ClusterNames(), nil
}

// terminal reports how wide and high the screen is that w prints on; ok is false
// when it is none.
func terminal(w io.Writer) (width, height int, ok bool) {
	file, isFile := w.(*os.File)
	if !isFile || os.Getenv("TERM") == "dumb" {
		return 0, 0, false
	}
	width, height, err := term.GetSize(int(file.Fd())) // #nosec G115 -- a file descriptor is a small number
	return width, height, err == nil && width > 0
}
