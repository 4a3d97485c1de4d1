package plan

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSameVersion(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"1.28.1", "v1.28.1", true},
		{"1.28.1", "1.28.10", false},
		{"1.28.1+vendor.1", "1.28.1", true},
		{"1.28.1+vendor.1", "v1.28.1+vendor.2", true},
		{"1.28.1-rc.0", "1.28.1", false},
		{"1.28", "1.28.0", false},
		{"", "", false},
		{"kwok", "kwok", false},
	} {
		require.Equal(t, c.same, SameVersion(c.a, c.b), "%q and %q", c.a, c.b)
	}
}

func TestCanonical(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"v1.37.2", "1.37.2"}, {" 1.37.2+vendor.1\n", "1.37.2"}, {"1.38.0-rc.1+x", "1.38.0-rc.1"}, {"", ""}, {"kwok", "kwok"},
	} {
		require.Equal(t, c.want, Canonical(c.in), "%q", c.in)
	}
}

func TestPrintsVersion(t *testing.T) {
	for _, c := range []struct {
		name, output string
		want         bool
	}{
		{"plain", "Kubernetes v1.37.2\n", true},
		{"stderr mixed in", "sudo: unable to resolve host w1\nKubernetes v1.37.2\n", true},
		{"trailing spaces", "Kubernetes v1.37.2  \r\n", true},
		{"longer version", "Kubernetes v1.37.20\n", false},
		{"vendor build", "Kubernetes v1.37.2+vendor.1\n", true},
		{"version within a sentence", "v1.37.2 is not installed\n", false},
		{"nothing", "", false},
	} {
		require.Equal(t, c.want, PrintsVersion(c.output, "1.37.2"), c.name)
	}
}

func TestCheckStep(t *testing.T) {
	for _, c := range []struct{ from, to, refusal string }{
		{"1.36.3", "1.37.2", ""},
		{"1.36.3", "1.36.4", ""},
		{"v1.36.3+vendor.1", "v1.37.2", ""},
		{"1.36.3", "1.36.3", "is at 1.36.3 already"},
		{"1.36.3", "1.36.3+vendor.2", "is at 1.36.3 already"},
		{"1.36.3", "1.36.2", "does not downgrade"},
		{"1.34.0", "1.37.2", "one minor at a time, 1.35.x, then 1.36.x, then 1.37.2"},
		{"1.36.3", "2.0.0", "major version"},
		{"1.36.3", "latest", `version "latest": want MAJOR.MINOR.PATCH`},
	} {
		err := CheckStep(c.from, c.to)
		if c.refusal == "" {
			require.NoError(t, err, "%s to %s", c.from, c.to)
			continue
		}
		require.ErrorContains(t, err, c.refusal, "%s to %s", c.from, c.to)
	}
}
