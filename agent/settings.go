package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"time"

	"go.uber.org/zap"

	"ebb/internal/tunnel"
	"ebb/internal/tunnel/agent"
)

// refresh is how often an agent looks for servers beyond those that it has been told of.
const refresh = time.Minute

// settings are the flags.
type settings struct {
	server, serverName, caFile string
	credentials
	id           string
	offers       string
	drainTimeout time.Duration
	listen       string
}

// credentials prove who the agent is.
type credentials struct {
	certificateFile, keyFile string
	tokenFile, cluster       string
}

func (s *settings) addTo(flags *flag.FlagSet) {
	host, _ := os.Hostname() // without one --id is required
	flags.StringVar(&s.server, "server", "", "host:port of the tunnel of ebb-gateway (required)")
	flags.StringVar(&s.serverName, "server-name", "", "name in the gateway's certificate, in place of the host in --server")
	flags.StringVar(&s.caFile, "ca-file", "", "PEM: who signs the gateway's certificate, in place of the system's authorities")
	flags.StringVar(&s.certificateFile, "certificate-file", "", "PEM: the agent's certificate")
	flags.StringVar(&s.keyFile, "key-file", "", "PEM: its key")
	flags.StringVar(&s.tokenFile, "token-file", "", "the token of a ServiceAccount, in place of a certificate")
	flags.StringVar(&s.cluster, "cluster", "", "name in the gateway's ebb.yaml of the cluster whose token it is")
	flags.StringVar(&s.id, "id", host, "which agent this is; the name of its node, so that a cordon of the node is known to be its own")
	flags.StringVar(&s.offers, "offer", "", "what it reaches better than others, such as host=w1&ipv4=10.0.0.7&cidr=10.0.0.0/24&default-route=true")
	flags.DurationVar(&s.drainTimeout, "drain-timeout", 5*time.Minute, "how long what it carries may last when it drains")
	flags.StringVar(&s.listen, "listen", "127.0.0.1:8473", "host:port of health, metrics and drain")
}

// options checks the settings and says everything that is wrong with them.
func (s settings) options(log *zap.Logger) (agent.Options, error) {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if host, port, err := net.SplitHostPort(s.server); err != nil || host == "" || port == "" {
		fault("--server %q: want host:port of the gateway's tunnel, such as ebb.example.com:8472", s.server)
	}
	if s.id == "" {
		fault("--id: is required, as this machine has no name")
	}
	if s.drainTimeout <= 0 {
		fault("--drain-timeout %s: want more than 0", s.drainTimeout)
	}
	offers, err := tunnel.ParseIdentifiers(s.offers)
	if err != nil {
		fault("--offer: %w", err)
	}
	faults = append(faults, s.check())
	if len(s.caFile) > 0 {
		_, err := readAuthorities(s.caFile)
		faults = append(faults, err)
	}
	return agent.Options{
		ID: s.id, Identifiers: offers, DrainTimeout: s.drainTimeout, Refresh: refresh, Log: log,
		Connect: s.connect,
	}, errors.Join(faults...)
}

// check returns an error unless there is one way to prove who the agent is.
func (c credentials) check() error {
	switch {
	case c.certificateFile == "" && c.keyFile == "" && c.tokenFile == "":
		return errors.New("nothing proves who the agent is: set --certificate-file and --key-file, or --token-file and --cluster")
	case (c.certificateFile == "") != (c.keyFile == ""):
		return errors.New("--certificate-file and --key-file: want both, or neither")
	case c.certificateFile != "" && c.tokenFile != "":
		return errors.New("--token-file: want it or a certificate, not both")
	case c.tokenFile != "" && c.cluster == "":
		return errors.New("--cluster: is required with --token-file: the token is checked by that cluster")
	}
	_, err := c.read()
	return err
}

// open listens for health and metrics.
func (s settings) open(ctx context.Context) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", s.listen)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", s.listen, err)
	}
	return l, nil
}
