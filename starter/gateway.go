package main

import (
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ebb/internal/api/client"
)

// gatewayFlags say through which gateway a command works; none = it works on the
// engine and the clusters itself.
type gatewayFlags struct {
	url, tokenFile, caFile string
	retry                  time.Duration
}

const hereOnly = "here" // annotation of commands that act on the machine where they are run

func (g *gatewayFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&g.url, "gateway", os.Getenv("EBB_GATEWAY"), "URL of an ebb-gateway to work through (default $EBB_GATEWAY)")
	flags.StringVar(&g.tokenFile, "token-file", os.Getenv("EBB_TOKEN_FILE"), "file with the gateway's token (default $EBB_TOKEN_FILE; or the token itself is in $EBB_TOKEN)")
	flags.StringVar(&g.caFile, "ca-file", os.Getenv("EBB_GATEWAY_CA"), "file with the certificates, in PEM, that the gateway's is checked against (default $EBB_GATEWAY_CA, else the system's)")
	flags.DurationVar(&g.retry, "retry-timeout", 10*time.Minute, "how long a gateway that restarts is waited for")
}

// validate checks the flags before a command runs.
func (g *gatewayFlags) validate(cmd *cobra.Command) error {
	if cmd.Annotations[hereOnly] != "" && cmd.Flags().Changed("gateway") {
		return usage(cmd, "%s acts on the machine where it is run, not through a gateway: leave out --gateway", cmd.CommandPath())
	}
	if g.retry <= 0 {
		return usage(cmd, "--retry-timeout %s: want more than nothing, such as 10m", g.retry)
	}
	return nil
}

// through is the client of the gateway.
func (a *app) through() (*client.Client, error) {
	readToken, err := a.gateway.tokenReader()
	if err != nil {
		return nil, err
	}
	trust, err := a.gateway.trust()
	if err != nil {
		return nil, err
	}
	return client.New(client.Options{URL: a.gateway.url, ReadToken: readToken, RootCAs: trust, RetryTimeout: a.gateway.retry, Notify: a.notice})
}

// tokenReader returns what reads the token before each attempt, nil if there is none.
func (g *gatewayFlags) tokenReader() (func() (string, error), error) {
	token, err := g.token()
	if err != nil || token == "" {
		return nil, err
	}
	return g.token, nil
}

// token returns the token, "" if there is none.
func (g *gatewayFlags) token() (string, error) {
	if g.tokenFile == "" {
		return strings.TrimSpace(os.Getenv("EBB_TOKEN")), nil
	}
	data, err := os.ReadFile(g.tokenFile)
	if err != nil {
		return "", fmt.Errorf("read the gateway's token: %w", err)
	}
	token := strings.TrimSpace(string(data))
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", fmt.Errorf("%s holds no token: want one line, as `ebb-gateway token` prints it", g.tokenFile)
	}
	return token, nil
}

// trust returns the certificates that the gateway's is checked against, nil = those of
// the system.
func (g *gatewayFlags) trust() (*x509.CertPool, error) {
	if g.caFile == "" {
		return nil, nil //nolint:nilnil // the system's is what nil stands for
	}
	data, err := os.ReadFile(g.caFile)
	if err != nil {
		return nil, fmt.Errorf("read the certificates for the gateway: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("%s holds no certificate in PEM", g.caFile)
	}
	return roots, nil
}
