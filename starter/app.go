package main

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"
	"go.temporal.io/sdk/client"
	"go.uber.org/zap"
	"golang.org/x/term"

	"ebb/internal/config"
	"ebb/internal/engine"
	"ebb/internal/logging"
	"ebb/internal/ops"
)

// app is what all commands share: the global flags, where they print, and the
// connection that is opened when first needed.
type app struct {
	out, errs io.Writer

	configPath string
	output     string
	verbose    bool

	log    *zap.Logger
	client client.Client
	ops    ops.Client // set by connect; a test sets it before
}

// validate checks the global flags; it is called before every command.
func (a *app) validate(cmd *cobra.Command) error {
	if a.output != "" && a.output != "json" {
		return usage(cmd, `--output %q: only "json" is known`, a.output)
	}
	a.log = zap.NewNop()
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
	settings, err := engine.Resolve(engine.Options{})
	if err != nil {
		return nil, err
	}
	if a.client, err = engine.Dial(ctx, a.log, engine.Options{}); err != nil {
		return nil, err
	}
	a.ops = ops.NewTemporal(a.client, settings.Namespace).WithNotices(a.notice)
	return a.ops, nil
}

// Close closes what was opened.
func (a *app) Close() {
	if a.client != nil {
		a.client.Close()
	}
}

func (a *app) config() (*config.File, error) { return config.Open(config.Path(a.configPath)) }

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
