// Command ebb-gateway serves Ebb's operations over HTTP, so that its users need
// neither the engine's address nor the clusters' credentials. It drains on
// SIGTERM: new requests are rejected, those in flight finish.
package main

import (
	"context"
	"flag"
	"io"
	"os"

	"go.uber.org/zap"

	"ebb/internal/command"
	"ebb/internal/config"
)

// version is set by the linker.
var version = "unknown"

// about is printed above the flags.
const about = `ebb-gateway serves Ebb's operations over HTTP: ` + "`ebb --gateway URL`" + ` uses it instead
of a Temporal engine. Any number of gateways may serve at once.

It is set up by the section gateway: of ebb.yaml (deployments/ebb.example.yaml has
all of it); a change there takes a restart, one in the files that it names does
not. ` + "`ebb-gateway token`" + ` makes a token for the tokens file,
` + "`ebb-gateway health`" + ` tells whether the gateway on this machine lives,
` + "`ebb-gateway leave`" + ` that it will be stopped.

The engine is named by TEMPORAL_ADDRESS (default localhost:7233), TEMPORAL_NAMESPACE,
TEMPORAL_API_KEY, TEMPORAL_TLS_* or a profile named by TEMPORAL_PROFILE.

SIGTERM and SIGINT stop it in an orderly way: new requests are sent away to be
tried again, running ones finish, at most for gateway.gracePeriod. A second signal
exits at once. Requests and the audit are logged at the level info.

Flags:
`

// gateway is a gateway with its settings.
type gateway struct {
	file     *config.File
	log      *zap.Logger
	settings config.Gateway
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == "token" {
		return runToken(args[1:], stdout, stderr)
	}
	if len(args) > 0 && args[0] == "health" {
		return runHealth(args[1:], stderr)
	}
	if len(args) > 0 && args[0] == "leave" {
		return runLeave(args[1:], stderr)
	}
	var listen string
	return command.Server{
		Name: "ebb-gateway", About: about, Version: version,
		Flags: func(flags *flag.FlagSet) {
			flags.StringVar(&listen, "listen", "", "host:port, in place of gateway.listen")
		},
		Serve: func(ctx context.Context, file *config.File, log *zap.Logger) error {
			g := &gateway{file: file, log: log}
			if err := g.readSettings(listen); err != nil {
				return err
			}
			return g.serve(ctx)
		},
	}.Run(args, stdout, stderr)
}

// readSettings reads and checks the settings. listen, if any, replaces gateway.listen.
func (g *gateway) readSettings(listen string) error {
	current, err := g.file.Current()
	if err != nil {
		return err
	}
	g.settings = current.Gateway
	if listen != "" {
		g.settings.Listen = listen
	}
	return checkSettings(g.settings, g.file.Path())
}
