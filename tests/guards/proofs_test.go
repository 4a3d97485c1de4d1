package guards

import (
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var testName = regexp.MustCompile("`(Test[A-Za-z0-9]+)(…?)`")

// Every test that ARCHITECTURE.md names as a proof exists; a name that ends in … is
// the beginning of several.
func TestProofsExist(t *testing.T) {
	text, err := os.ReadFile("../../ARCHITECTURE.md")
	require.NoError(t, err)
	named := testName.FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, named)
	sources := testSources(t)
	for _, n := range named {
		declaration := "\nfunc " + n[1]
		if n[2] == "" {
			declaration += "("
		}
		assert.True(t, strings.Contains(sources, declaration), "ARCHITECTURE.md names %s, and there is no such test", n[0])
	}
}

// testSources returns the text of all tests.
func testSources(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	root := os.DirFS("../..")
	require.NoError(t, fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := fs.ReadFile(root, path)
		all.Write(source)
		return err
	}))
	return all.String()
}
