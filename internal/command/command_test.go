package command

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"ebb/internal/config"
)

// runServer runs a server and returns its exit code and outputs.
func runServer(serve func(context.Context, *config.File, *zap.Logger) error, args ...string) (code int, out, errs string) {
	var stdout, stderr bytes.Buffer
	var own bool
	s := Server{
		Name: "ebb-test", About: "ebb-test does nothing.\n", Version: "1.2.3", Serve: serve,
		Flags: func(f *flag.FlagSet) { f.BoolVar(&own, "own", false, "a flag of its own") },
	}
	code = s.Run(args, &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

func configuration(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ebb.yaml")
	require.NoError(t, os.WriteFile(path, []byte("clusters: [{name: a, kubeconfig: /k}]\n"), 0o600))
	return path
}

func TestCommandLine(t *testing.T) {
	t.Setenv("EBB_CONFIG", filepath.Join(t.TempDir(), "missing.yaml"))
	for name, c := range map[string]struct {
		args []string
		code int
		out  string
		errs string
	}{
		"version":          {[]string{"-version"}, ExitDone, "ebb-test 1.2.3\n", ""},
		"help":             {[]string{"--help"}, ExitDone, "", "ebb-test does nothing.\n"},
		"help, own flag":   {[]string{"--help"}, ExitDone, "", "a flag of its own"},
		"unknown flag":     {[]string{"--nope"}, ExitUsage, "", "nope"},
		"argument":         {[]string{"prod"}, ExitUsage, "", `ebb-test: unexpected argument "prod"; see ebb-test --help`},
		"log level":        {[]string{"--log-level", "loud"}, ExitUsage, "", "want debug, info, warn or error"},
		"no configuration": {[]string{"--own"}, ExitFailed, "", "missing.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errs := runServer(nil, c.args...)
			require.Equal(t, c.code, code)
			require.Equal(t, c.out, out)
			require.Contains(t, errs, c.errs)
		})
	}
}

func TestServe(t *testing.T) {
	path := configuration(t)
	serve := func(_ context.Context, file *config.File, log *zap.Logger) error {
		require.Equal(t, path, file.Path())
		require.True(t, log.Core().Enabled(zapcore.DebugLevel), "-v is debug")
		return errors.New("it is Sunday")
	}
	code, _, errs := runServer(serve, "-v", "--config", path)
	require.Equal(t, ExitFailed, code)
	require.Contains(t, errs, "ebb-test: it is Sunday\n")
}

func TestSignalEndsTheContext(t *testing.T) {
	serve := func(ctx context.Context, _ *config.File, _ *zap.Logger) error {
		require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
		<-ctx.Done()
		return nil
	}
	code, _, errs := runServer(serve, "--config", configuration(t))
	require.Equal(t, ExitDone, code, errs)
}
