// Command ebb-gateway serves Ebb's operations over HTTP, so that its users need
// neither the engine's address nor the clusters' credentials. It drains on
// SIGTERM: what is new is sent away, what runs is let finish.
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
	"ebb/internal/logging"
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
const usage = `ebb-gateway serves Ebb's operations over HTTP: ` + "`ebb --gateway URL`" + ` uses it instead
of a Temporal engine. Any number of gateways may serve at once.

It is set up by the section gateway: of ebb.yaml (deployments/ebb.example.yaml has
all of it); a change there takes a restart, one in the files that it names does
not. ` + "`ebb-gateway token`" + ` makes a token for the tokens file.

The engine is named by TEMPORAL_ADDRESS (default localhost:7233), TEMPORAL_NAMESPACE,
TEMPORAL_API_KEY, TEMPORAL_TLS_* or a profile named by TEMPORAL_PROFILE.

SIGTERM and SIGINT stop it in an orderly way: new requests are sent away to be
tried again, running ones finish, at most for gateway.gracePeriod. A second signal
exits at once.

Flags:
`

// command is what a command line asks for.
type command struct {
	config   string
	listen   string
	logLevel string
	version  bool

	log      *zap.Logger
	file     *config.File
	settings config.Gateway
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == "token" {
		return runToken(args[1:], stdout, stderr)
	}
	c := &command{}
	switch err := c.parseFlags(args, stderr); {
	case errors.Is(err, flag.ErrHelp):
		return exitDone
	case err != nil:
		return exitUsage // flag has said what is wrong
	case c.version:
		tell(stdout, "ebb-gateway %s\n", version)
		return exitDone
	}
	var err error
	if c.log, err = logging.New(c.logLevel); err != nil {
		tell(stderr, "ebb-gateway: %v\n", err)
		return exitUsage
	}
	ctx, release := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer release()
	context.AfterFunc(ctx, release) // a second signal has its default effect
	if err = c.validate(); err == nil {
		err = c.serve(ctx)
	}
	if err != nil {
		tell(stderr, "ebb-gateway: %v\n", err)
		return exitFailed
	}
	return exitDone
}

// tell prints for a person; when nobody reads it, nobody misses it.
func tell(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }

func (c *command) parseFlags(args []string, stderr io.Writer) error {
	var verbose bool
	flags := flag.NewFlagSet("ebb-gateway", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&c.config, "config", "", "path of ebb.yaml (default $EBB_CONFIG, else ./ebb.yaml, else ~/.config/ebb/ebb.yaml)")
	flags.StringVar(&c.listen, "listen", "", "host:port, in place of gateway.listen")
	flags.StringVar(&c.logLevel, "log-level", "info", "log what is at least this important: debug, info, warn or error; requests and the audit are info")
	flags.BoolVar(&verbose, "v", false, "same as --log-level debug")
	flags.BoolVar(&c.version, "version", false, "print the version and exit")
	flags.Usage = func() {
		tell(stderr, "%s", usage)
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		err := fmt.Errorf("unexpected argument %q", flags.Arg(0))
		tell(stderr, "ebb-gateway: %v; see ebb-gateway --help\n", err)
		return err
	}
	if verbose {
		c.logLevel = "debug"
	}
	return nil
}

// validate reads the settings and refuses those that nobody should serve with.
func (c *command) validate() (err error) {
	if c.file, err = config.Open(config.Path(c.config)); err != nil {
		return err
	}
	c.file.WithLogger(c.log)
	current, err := c.file.Current()
	if err != nil {
		return err
	}
	c.settings = current.Gateway
	if c.listen != "" {
		c.settings.Listen = c.listen
	}
	return checkSettings(c.settings, c.file.Path())
}
