package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"ebb/internal/api/auth"
	"ebb/internal/command"
	"ebb/internal/config"
)

func TestCommandLine(t *testing.T) {
	t.Setenv("EBB_CONFIG", filepath.Join(t.TempDir(), "missing.yaml"))
	for name, c := range map[string]struct {
		args []string
		code int
		out  string
		errs string
	}{
		"version":          {[]string{"-version"}, 0, "ebb-gateway unknown\n", ""},
		"help":             {[]string{"--help"}, 0, "", "SIGTERM"},
		"unknown flag":     {[]string{"--nope"}, 2, "", "nope"},
		"argument":         {[]string{"prod"}, 2, "", `unexpected argument "prod"`},
		"log level":        {[]string{"--log-level", "loud"}, 2, "", "want debug, info, warn or error"},
		"no configuration": {nil, 1, "", "missing.yaml"},
		"token help":       {[]string{"token", "--help"}, 0, "", "printed once"},
		"token nameless":   {[]string{"token", "--clusters", "prod"}, 2, "", "needs a name"},
		"token role":       {[]string{"token", "--name", "ci", "--clusters", "prod", "--role", "boss"}, 2, "", `not "boss"`},
		"token scopeless":  {[]string{"token", "--name", "ci"}, 2, "", "clusters must name"},
		"health help":      {[]string{"health", "--help"}, 0, "", "whether it lives"},
		"health elsewhere": {[]string{"health", "--url", "https://ebb.example.com"}, 2, "", "want a URL of this machine"},
		"health argument":  {[]string{"health", "now"}, 2, "", `unexpected argument "now"`},
		"token argument":   {[]string{"token", "ci"}, 2, "", `unexpected argument "ci"`},
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
func TestRefusesToServeAnybody(t *testing.T) {
	for name, c := range map[string]struct {
		yaml   string
		args   []string
		faults []string
	}{
		"no section":   {"clusters: [{name: a, kubeconfig: /k}]", nil, []string{"nobody could prove who they are", "ebb-gateway token"}},
		"open address": {"gateway: {tokensFile: /t, listen: ':8470'}", nil, []string{"without TLS would send tokens in the clear"}},
		"open by flag": {"gateway: {tokensFile: /t}", []string{"--listen", "0.0.0.0:8470"}, []string{"listening on 0.0.0.0:8470 without TLS"}},
		"both":         {"gateway: {listen: '10.0.0.1:8470'}", nil, []string{"nobody could prove", "without TLS"}},
		"no port":      {"gateway: {tokensFile: /t}", []string{"--listen", "localhost"}, []string{"want host:port"}},
		"no tokens":    {"gateway: {tokensFile: /none/tokens}", nil, []string{"/none/tokens: no such file"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "ebb.yaml")
			require.NoError(t, os.WriteFile(path, []byte(c.yaml), 0o600))
			var stdout, stderr bytes.Buffer
			require.Equal(t, command.ExitFailed, run(append([]string{"--config", path}, c.args...), &stdout, &stderr))
			for _, fault := range c.faults {
				require.Contains(t, stderr.String(), fault)
			}
		})
	}
}

func TestTokenGoesIntoTheFile(t *testing.T) {
	var stdout, stderr bytes.Buffer
	require.Zero(t, run([]string{"token", "--name", "ci", "--role", "operator", "--clusters", "prod,dev"}, &stdout, &stderr))
	token := string(bytes.TrimSpace(stdout.Bytes()))
	require.Regexp(t, `^ebb_[A-Za-z0-9_-]{43}$`, token)
	require.NotContains(t, stderr.String(), token)
	_, line, found := bytes.Cut(stderr.Bytes(), []byte("\n"))
	require.True(t, found)
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	require.NoError(t, os.WriteFile(path, append([]byte("tokens:\n"), line...), 0o600))
	tokens, err := auth.OpenTokenFile(path, zap.NewNop())
	require.NoError(t, err)
	p, err := tokens.Authenticate(t.Context(), token)
	require.NoError(t, err)
	require.Equal(t, &auth.Principal{Name: "ci", Source: auth.SourceToken, Grants: []auth.Grant{{Role: auth.Operator, Clusters: []string{"prod", "dev"}}}}, p)
}

func TestHealthIsThatOfTheGateway(t *testing.T) {
	status := http.StatusOK
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		require.Equal(t, "/healthz", r.URL.Path)
		w.WriteHeader(status)
	}))
	var stdout, stderr bytes.Buffer
	require.Zero(t, run([]string{"health", "--url", server.URL}, &stdout, &stderr), stderr.String())
	status = http.StatusBadGateway
	require.Equal(t, command.ExitFailed, run([]string{"health", "--url", server.URL}, &stdout, &stderr))
	require.Contains(t, stderr.String(), "answers 502 Bad Gateway")
	server.Close()
	require.Equal(t, command.ExitFailed, run([]string{"health", "--url", server.URL}, &stdout, &stderr))
	require.Contains(t, stderr.String(), "connection refused")
}

// certify writes a certificate of its own name, and the key that belongs to it.
func certify(t *testing.T, files config.TLS, name string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	secret, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(files.CertificateFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600))
	require.NoError(t, os.WriteFile(files.KeyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret}), 0o600))
}

func TestCertificateIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	files := config.TLS{CertificateFile: filepath.Join(dir, "c.pem"), KeyFile: filepath.Join(dir, "k.pem")}
	_, err := openKeyPair(files, zap.NewNop())
	require.ErrorContains(t, err, "c.pem")
	certify(t, files, "one")
	pair, err := openKeyPair(files, zap.NewNop())
	require.NoError(t, err)
	clock := time.Now()
	pair.now = func() time.Time { return clock }
	name := func() string {
		c, err := pair.current(&tls.ClientHelloInfo{})
		require.NoError(t, err)
		leaf, err := x509.ParseCertificate(c.Certificate[0])
		require.NoError(t, err)
		return leaf.Subject.CommonName
	}
	require.Equal(t, "one", name())
	other := config.TLS{CertificateFile: files.CertificateFile, KeyFile: filepath.Join(dir, "other.pem")}
	certify(t, other, "two") // the certificate is new, its key is not there yet
	clock = clock.Add(reloadInterval)
	require.Equal(t, "one", name(), "the last pair that fits")
	require.NoError(t, os.Rename(other.KeyFile, files.KeyFile))
	require.Equal(t, "one", name(), "it is not looked at each time")
	clock = clock.Add(reloadInterval)
	require.Equal(t, "two", name())
}
