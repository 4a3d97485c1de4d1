package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"ebb/internal/command"
	"ebb/internal/tunnel"
	"ebb/internal/tunnel/agent"
	"ebb/internal/tunnel/tunneltest"
)

func TestCommandLine(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		code int
		out  string
		errs string
	}{
		"version":      {[]string{"-version"}, 0, "ebb-agent unknown\n", ""},
		"help":         {[]string{"--help"}, 0, "", "POST /drain"},
		"unknown flag": {[]string{"--nope"}, 2, "", "nope"},
		"argument":     {[]string{"w1"}, 2, "", `unexpected argument "w1"`},
		"no ebb.yaml":  {[]string{"--config", "x"}, 2, "", "config"},
		"log level":    {[]string{"--log-level", "loud"}, 2, "", "want debug, info, warn or error"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			require.Equal(t, c.code, run(c.args, &stdout, &stderr), stderr.String())
			require.Equal(t, c.out, stdout.String())
			require.Contains(t, stderr.String(), c.errs)
		})
	}
}

// It says everything that keeps it from serving, and what to do.
func TestSettingsThatAreWrong(t *testing.T) {
	dir := t.TempDir()
	authority, err := tunneltest.NewAuthority(dir)
	require.NoError(t, err)
	certificate, key, err := authority.Issue("agent")
	require.NoError(t, err)
	empty := filepath.Join(dir, "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	good := []string{"--server", "127.0.0.1:1", "--certificate-file", certificate, "--key-file", key}
	for name, c := range map[string]struct {
		args   []string
		faults []string
	}{
		"nothing":      {nil, []string{`--server ""`, "nothing proves who the agent is"}},
		"many":         {append(good, "--server", "x", "--offer", "ipv4=x", "--drain-timeout", "0s", "--ca-file", empty), []string{`--server "x"`, `ipv4="x"`, "--drain-timeout 0s", "no certificate in"}},
		"half a pair":  {append(good, "--key-file", ""), []string{"want both, or neither"}},
		"no such file": {append(good, "--certificate-file", dir+"/none"), []string{dir + "/none: no such file"}},
		"both":         {append(good, "--token-file", empty), []string{"not both"}},
		"whose token":  {[]string{"--server", "127.0.0.1:1", "--token-file", empty}, []string{"--cluster: is required"}},
		"no token":     {[]string{"--server", "127.0.0.1:1", "--token-file", empty, "--cluster", "edge"}, []string{empty + " is empty"}},
		"no name":      {append(good, "--id", ""), []string{"--id: is required"}},
		"listen":       {append(good, "--listen", "nowhere"), []string{"listen on nowhere"}},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			require.Equal(t, command.ExitFailed, run(c.args, &stdout, &stderr))
			for _, fault := range c.faults {
				require.Contains(t, stderr.String(), fault)
			}
		})
	}
}

// The token that is sent is the one that the file holds when the agent connects.
func TestTokenIsReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	c := credentials{tokenFile: file, cluster: "edge"}
	for _, token := range []string{"one", "two\n"} {
		require.NoError(t, os.WriteFile(file, []byte(token), 0o600))
		p, err := c.read()
		require.NoError(t, err)
		sent, err := bearer{token: p.token, cluster: c.cluster}.GetRequestMetadata(t.Context())
		require.NoError(t, err)
		require.Equal(t, map[string]string{"authorization": "Bearer " + strings.TrimSpace(token), tunnel.HeaderCluster: "edge"}, sent)
	}
	require.True(t, bearer{}.RequireTransportSecurity())
}

func TestHealthMetricsAndDrain(t *testing.T) {
	a := agent.New(agent.Options{ID: "w1", DrainTimeout: time.Second, Log: zap.NewNop()})
	h := handler(a)
	ask := func(method, path, from string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), method, path, nil)
		r.RemoteAddr = from
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	require.Equal(t, http.StatusOK, ask(http.MethodGet, "/healthz", "10.0.0.1:1").Code)
	w := ask(http.MethodGet, "/readyz", "10.0.0.1:1")
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.Contains(t, w.Body.String(), "no server is connected")
	require.Contains(t, ask(http.MethodGet, "/metrics", "10.0.0.1:1").Body.String(), "ebb_agent_connected_servers 0")

	require.Equal(t, http.StatusForbidden, ask(http.MethodPost, "/drain", "10.0.0.1:1").Code)
	require.Contains(t, ask(http.MethodGet, "/metrics", "10.0.0.1:1").Body.String(), "ebb_agent_draining 0")
	require.Equal(t, http.StatusAccepted, ask(http.MethodPost, "/drain", "127.0.0.1:1").Code)
	require.Contains(t, ask(http.MethodGet, "/metrics", "10.0.0.1:1").Body.String(), "ebb_agent_draining 1")
	require.Contains(t, ask(http.MethodGet, "/readyz", "10.0.0.1:1").Body.String(), "draining")
	require.Equal(t, http.StatusMethodNotAllowed, ask(http.MethodGet, "/drain", "127.0.0.1:1").Code)
}
