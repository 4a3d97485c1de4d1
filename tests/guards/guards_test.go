// Package guards proves that make check bites: a workflow that reads the clock or
// reaches for the world fails it.
package guards

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const violation = `package workflows

import (
	"os"
	"time"

	"k8s.io/client-go/kubernetes"

	"ebb/internal/nodessh"
)

// Violation does what a workflow must not do.
func Violation(c kubernetes.Interface) (time.Time, error) {
	_, err := os.Hostname()
	if nodessh.Permanent(err) {
		time.Sleep(time.Second)
	}
	return time.Now(), err
}
`

func TestWorkflowsThatTouchTheWorldFailTheCheck(t *testing.T) {
	linter, err := exec.LookPath(filepath.Join(os.Getenv("EBB_BIN"), "golangci-lint"))
	if err != nil {
		t.Skip("golangci-lint is not built: run this through make check")
	}
	dir := t.TempDir()
	for _, part := range []string{"go.mod", "go.sum", ".golangci.yml", "workflows", "activities", "internal"} {
		out, err := exec.CommandContext(t.Context(), "cp", "-r", filepath.Join("../..", part), dir).CombinedOutput()
		require.NoError(t, err, string(out))
	}
	run := func() (string, error) {
		cmd := exec.CommandContext(t.Context(), linter, "run", "--allow-parallel-runners", "./workflows/...")
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := run()
	require.NoError(t, err, "without the violation: %s", out)

	require.NoError(t, os.WriteFile(filepath.Join(dir, "workflows", "violation.go"), []byte(violation), 0o600))
	out, err = run()

	require.Error(t, err)
	for _, want := range []string{
		"import 'os' is not allowed",
		"import 'k8s.io/client-go/kubernetes' is not allowed",
		"import 'ebb/internal/nodessh' is not allowed",
		"use of `time.Now` forbidden",
		"use of `time.Sleep` forbidden",
	} {
		require.Contains(t, out, want)
	}
}
