// Command ebb-agent runs in a private network and lets Ebb's gateways, and whoever dials
// through them, reach what is there. It connects to them, so that nothing has to reach it.
// It drains on SIGTERM.
package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"net/http"
	"os"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"ebb/internal/command"
	"ebb/internal/tunnel/agent"
)

// version is set by the linker.
var version = "unknown"

// about is printed above the flags.
const about = `ebb-agent connects to the tunnel of ebb-gateway and dials for it in the network where
it runs (docs/tunnel.md). Any number of agents may serve one cluster. It proves who it
is by a certificate or by the token of a ServiceAccount; their files are read again for
each connection.

SIGTERM, SIGINT and POST /drain let it drain: the gateways give new dials to other
agents, and it exits when the last connection that it carries has ended, at most after
--drain-timeout; what is left then is cut, and the exit code is 1. A second signal
exits at once.

At --listen it answers /healthz, /readyz (503 while no gateway is connected, and while it
drains), /metrics and, to callers on this machine only, POST /drain.

Flags:
`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	var s settings
	return command.Server{
		Name: "ebb-agent", About: about, Version: version,
		Flags:      func(flags *flag.FlagSet) { s.addTo(flags) },
		ServeAlone: func(ctx context.Context, log *zap.Logger) error { return serve(ctx, s, log) },
	}.Run(args, stdout, stderr)
}

// shutdownTimeout is how long requests under way may take when the agent has drained.
const shutdownTimeout = time.Second

// serve connects until ctx ends and what the agent carries has ended.
func serve(ctx context.Context, s settings, log *zap.Logger) error {
	options, err := s.options(log)
	if err != nil {
		return err
	}
	a := agent.New(options)
	listener, err := s.open(ctx)
	if err != nil {
		return err
	}
	front := &http.Server{Handler: handler(a), ReadHeaderTimeout: shutdownTimeout}
	log.Info("serving", zap.Stringer("address", listener.Addr()), zap.String("server", s.server), zap.String("id", s.id), zap.String("version", version))
	stop := context.AfterFunc(ctx, a.Drain)
	defer stop()
	running, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	var group errgroup.Group
	group.Go(func() error {
		defer func() {
			ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
			defer cancel()
			_ = front.Shutdown(ending) // what is not answered by then is cut by the end of the process
		}()
		return a.Run(running)
	})
	group.Go(func() error {
		if err := front.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			cut()
			return err
		}
		return nil
	})
	return group.Wait()
}
