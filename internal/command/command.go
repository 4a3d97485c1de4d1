// Package command is what Ebb's programs have in common: exit codes, the end by a
// signal, and the flags, configuration and log of those that serve until then.
package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os/signal"
	"syscall"

	"go.uber.org/zap"

	"ebb/internal/config"
	"ebb/internal/logging"
)

// Exit codes.
const (
	ExitDone   = 0
	ExitFailed = 1
	ExitUsage  = 2
)

// Server is a program that serves until SIGTERM or SIGINT.
type Server struct {
	Name    string // as the shell knows it
	About   string // printed above the flags
	Version string
	Flags   func(*flag.FlagSet) // adds flags of its own; nil = it has none

	// Serve works until ctx ends and returns nil after an orderly stop. One of the two is
	// set; ServeAlone is for a program that reads no ebb.yaml.
	Serve      func(ctx context.Context, file *config.File, log *zap.Logger) error
	ServeAlone func(ctx context.Context, log *zap.Logger) error
}

// Run parses the flags, opens the log and the configuration and serves. It returns
// the exit code; what went wrong is printed on stderr.
func (s Server) Run(args []string, stdout, stderr io.Writer) int {
	o, err := s.parse(args, stderr)
	switch {
	case err != nil:
		return ParseExitCode(err)
	case o.version:
		Printf(stdout, "%s %s\n", s.Name, s.Version)
		return ExitDone
	}
	log, err := logging.New(o.logLevel)
	if err != nil {
		Printf(stderr, "%s: %v\n", s.Name, err)
		return ExitUsage
	}
	ctx, stop := SignalContext(context.Background())
	defer stop()
	if err := s.serve(ctx, o, log); err != nil {
		Printf(stderr, "%s: %v\n", s.Name, err)
		return ExitFailed
	}
	return ExitDone
}

func (s Server) serve(ctx context.Context, o options, log *zap.Logger) error {
	if s.ServeAlone != nil {
		return s.ServeAlone(ctx, log)
	}
	file, err := config.Open(config.Path(o.config))
	if err != nil {
		return err
	}
	return s.Serve(ctx, file.WithLogger(log), log)
}

// options are the flags that every server has.
type options struct {
	config   string
	logLevel string
	version  bool
}

func (s Server) parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var verbose bool
	flags := flag.NewFlagSet(s.Name, flag.ContinueOnError)
	if s.ServeAlone == nil {
		flags.StringVar(&o.config, "config", "", "path of ebb.yaml (default $EBB_CONFIG, else ./ebb.yaml, else ~/.config/ebb/ebb.yaml)")
	}
	flags.StringVar(&o.logLevel, "log-level", "info", "log what is at least this important: debug, info, warn or error")
	flags.BoolVar(&verbose, "v", false, "same as --log-level debug")
	flags.BoolVar(&o.version, "version", false, "print the version and exit")
	if s.Flags != nil {
		s.Flags(flags)
	}
	err := ParseFlags(flags, s.About, args, stderr)
	if verbose {
		o.logLevel = "debug"
	}
	return o, err
}

// ParseFlags parses a command line that takes flags only. The help begins with
// about. An error has been printed on stderr; flag.ErrHelp is one that was asked for.
func ParseFlags(flags *flag.FlagSet, about string, args []string, stderr io.Writer) error {
	flags.SetOutput(stderr)
	flags.Usage = func() {
		Printf(stderr, "%s", about)
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		err := fmt.Errorf("unexpected argument %q", flags.Arg(0))
		Printf(stderr, "%s: %v; see %s --help\n", flags.Name(), err, flags.Name())
		return err
	}
	return nil
}

// ParseExitCode returns the exit code for an error of ParseFlags.
func ParseExitCode(err error) int {
	if errors.Is(err, flag.ErrHelp) {
		return ExitDone
	}
	return ExitUsage
}

// SignalContext returns a context that ends with the first SIGTERM or SIGINT. A
// second signal has its default effect, which is to kill the process.
func SignalContext(parent context.Context) (ctx context.Context, stop func()) {
	ctx, stop = signal.NotifyContext(parent, syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// Printf prints for a person; when nobody reads it, nobody misses it.
func Printf(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }
