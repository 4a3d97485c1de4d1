package guards

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// goPackage is what go list says of a package.
type goPackage struct {
	ImportPath string
	Imports    []string // of its own code, not of its tests
	Deps       []string // all that it links
}

// packages are Ebb's own, by folder, without those of tests.
func packages(t *testing.T) map[string]goPackage {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,Deps", "./...")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	require.NoError(t, err)
	found := map[string]goPackage{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return found
		}
		require.NoError(t, err)
		if folder := strings.TrimPrefix(p.ImportPath, "ebb/"); !strings.HasPrefix(folder, "tests/") {
			found[folder] = p
		}
	}
}

// row is a line of ARCHITECTURE's table of components.
type row struct {
	folders []string
	knows   string
}

var (
	tableRow   = regexp.MustCompile("(?m)^\\| (`[^|]+) \\|.*\\| ([^|]*) \\|$")
	folderName = regexp.MustCompile("`([^`]+?)/?`")
)

func components(t *testing.T) (rows []row) {
	t.Helper()
	text, err := os.ReadFile("../../ARCHITECTURE.md")
	require.NoError(t, err)
	table, _, _ := strings.Cut(string(text), "Imports point down this table")
	for _, m := range tableRow.FindAllStringSubmatch(table, -1) {
		r := row{knows: m[2]}
		for _, f := range folderName.FindAllStringSubmatch(m[1], -1) {
			r.folders = append(r.folders, f[1])
		}
		rows = append(rows, r)
	}
	require.Greater(t, len(rows), 20, "the table is found")
	return rows
}

// place returns the row of a folder, or of the one that it is in.
func place(rows []row, folder string) int {
	best, length := -1, 0
	for i, r := range rows {
		for _, f := range r.folders {
			if (folder == f || strings.HasPrefix(folder, f+"/")) && len(f) > length {
				best, length = i, len(f)
			}
		}
	}
	return best
}

func TestImportsPointDown(t *testing.T) {
	rows := components(t)
	for folder, p := range packages(t) {
		own := place(rows, folder)
		if own < 0 {
			t.Errorf("%s has no row in ARCHITECTURE.md's table", folder)
			continue
		}
		for _, imported := range p.Imports {
			other, ebb := strings.CutPrefix(imported, "ebb/")
			if !ebb {
				continue
			}
			if at := place(rows, other); at < own {
				t.Errorf("%s imports %s, which stands above it in ARCHITECTURE.md's table", folder, other)
			} else if at != own && rows[own].knows == "nothing" {
				t.Errorf("%s imports %s, and ARCHITECTURE.md says that it knows nothing", folder, other)
			}
		}
	}
}

// What a client of a cluster, of its nodes or of its machines is linked by.
var (
	kubernetes     = "k8s.io/client-go"
	ssh            = "golang.org/x/crypto/ssh"
	etcd           = "go.etcd.io/etcd"
	infrastructure = "github.com/apache/cloudstack-go"
	temporal       = "go.temporal.io"
	workflows      = "ebb/workflows"
	activities     = "ebb/activities"
)

func TestLinked(t *testing.T) {
	all := packages(t)
	for _, c := range []struct {
		folders []string
		never   []string
	}{
		{[]string{"internal/version", "internal/clusterstate", "internal/policy", "internal/operation"},
			[]string{kubernetes, ssh, etcd, infrastructure, temporal}},
		{[]string{"internal/ops"}, []string{kubernetes, ssh, etcd, infrastructure, workflows, activities}},
		{[]string{"internal/api/wire", "internal/api/client", "internal/api/server", "internal/forecast", "gateway"},
			[]string{ssh, etcd, workflows, activities}},
		{[]string{"internal/api/auth"}, []string{kubernetes, ssh, etcd, infrastructure, temporal, workflows, activities}},
	} {
		for _, folder := range c.folders {
			p, ok := all[folder]
			require.True(t, ok, folder)
			for _, never := range c.never {
				i := slices.IndexFunc(p.Deps, func(dep string) bool { return dep == never || strings.HasPrefix(dep, never+"/") })
				if i >= 0 {
					t.Errorf("%s links %s", folder, p.Deps[i])
				}
			}
		}
	}
	for _, folder := range []string{"starter", "gateway", "internal/ops", "internal/forecast", "internal/api/client", "internal/api/server"} {
		require.NotContains(t, all[folder].Imports, workflows, folder)
		require.NotContains(t, all[folder].Imports, activities, folder)
	}
}
