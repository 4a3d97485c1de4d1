package guards

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// modulesOf returns the modules that packages link, with their versions.
func modulesOf(t *testing.T, folder string, packages ...string) map[string]string {
	t.Helper()
	const format = `{{with .Module}}{{if not .Main}}{{.Path}} {{with .Replace}}{{.Version}}{{else}}{{.Version}}{{end}}{{end}}{{end}}`
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-deps", "-f", format}, packages...)...)
	cmd.Dir = filepath.Join("../..", folder)
	out, err := cmd.Output()
	require.NoError(t, err)
	versions := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if module, version, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			versions[module] = version
		}
	}
	return versions
}

// What Ebb and the sandbox's programs both link is at one version: otherwise it is
// compiled twice, and a first `make demo` takes minutes longer.
func TestEbbAndItsSandboxShareVersions(t *testing.T) {
	ebb := modulesOf(t, ".", "./starter", "./worker", "./gateway")
	sandbox := modulesOf(t, "tools/sandbox", "go.etcd.io/etcd/server/v3", "k8s.io/kubernetes/cmd/kube-apiserver",
		"k8s.io/kubernetes/cmd/kube-controller-manager", "k8s.io/kubernetes/cmd/kube-scheduler", "sigs.k8s.io/kwok/cmd/kwok")
	shared := 0
	for module, version := range ebb {
		if other, ok := sandbox[module]; ok {
			shared++
			require.Equal(t, version, other, "%s: `go get` the higher one in the module that has the lower, then `go mod tidy` in both", module)
		}
	}
	require.Greater(t, shared, 100)
}
