package main

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"ebb/internal/command"
	"ebb/internal/config"
)

// aboutHealth is printed above the flags.
const aboutHealth = `ebb-gateway health asks the gateway on this machine whether it lives, and exits with 0
if it does, else with 1: a health check where there is no curl.

Flags:
`

// healthTimeout is how long the gateway may take to answer.
const healthTimeout = 5 * time.Second

// runHealth runs `ebb-gateway health` and returns its exit code.
func runHealth(args []string, stderr io.Writer) int {
	var address string
	flags := flag.NewFlagSet("ebb-gateway health", flag.ContinueOnError)
	flags.StringVar(&address, "url", "https://"+config.DefaultListen, "where the gateway listens; this machine only")
	if err := command.ParseFlags(flags, aboutHealth, args, stderr); err != nil {
		return command.ParseExitCode(err)
	}
	at, err := url.Parse(address)
	if err != nil || !config.IsLoopback(at.Hostname()) {
		command.Printf(stderr, "ebb-gateway health: --url %q: want a URL of this machine, such as https://%s\n", address, config.DefaultListen)
		return command.ExitUsage
	}
	if err := askHealth(at.JoinPath("healthz").String()); err != nil {
		command.Printf(stderr, "ebb-gateway health: %v\n", err)
		return command.ExitFailed
	}
	return command.ExitDone
}

// askHealth returns nil if the answer is 200.
func askHealth(address string) error {
	ctx, cancel := context.WithTimeout(context.Background(), healthTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	// The certificate is for the name by which others know the gateway. Nothing secret
	// is sent, and only this machine is asked.
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // #nosec G402 -- see above
	response, err := client.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // only its status counts
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", address, response.Status)
	}
	return nil
}
