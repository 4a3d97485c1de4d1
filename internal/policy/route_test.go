package policy

import (
	"testing"

	"github.com/stretchr/testify/require"

	"ebb/internal/version"
)

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
		err := CheckStep(version.Of(c.from), version.Of(c.to))
		if c.refusal == "" {
			require.NoError(t, err, "%s to %s", c.from, c.to)
			continue
		}
		require.ErrorContains(t, err, c.refusal, "%s to %s", c.from, c.to)
	}
}
