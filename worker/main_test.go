package main

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCommandLine(t *testing.T) {
	t.Setenv("EBB_CONFIG", filepath.Join(t.TempDir(), "missing.yaml"))
	for name, c := range map[string]struct {
		args []string
		code int
		out  string
		errs string
	}{
		"version":          {[]string{"-version"}, 0, "ebb-worker unknown\n", ""},
		"help":             {[]string{"--help"}, 0, "", "SIGTERM"},
		"unknown flag":     {[]string{"--nope"}, 2, "", "nope"},
		"argument":         {[]string{"prod"}, 2, "", `unexpected argument "prod"`},
		"log level":        {[]string{"--log-level", "loud"}, 2, "", "want debug, info, warn or error"},
		"no configuration": {nil, 1, "", "missing.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			require.Equal(t, c.code, run(c.args, &stdout, &stderr))
			require.Equal(t, c.out, stdout.String())
			require.Contains(t, stderr.String(), c.errs)
		})
	}
}
