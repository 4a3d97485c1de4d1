package version

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// sameRelease reports whether two spellings are of one release.
func sameRelease(a, b string) bool { return Of(a).Check() == nil && Of(a) == Of(b) }

func TestVersionsAreEqualWhenTheyAreTheSameRelease(t *testing.T) {
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
		require.Equal(t, c.same, sameRelease(c.a, c.b), "%q and %q", c.a, c.b)
	}
}

func TestOf(t *testing.T) {
	for _, c := range []struct {
		in   string
		want Version
	}{
		{"v1.37.2", "1.37.2"}, {" 1.37.2+vendor.1\n", "1.37.2"}, {"1.38.0-rc.1+x", "1.38.0-rc.1"}, {"", ""}, {"kwok", "kwok"},
	} {
		require.Equal(t, c.want, Of(c.in), "%q", c.in)
	}
}

func TestEndsLine(t *testing.T) {
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
		require.Equal(t, c.want, Version("1.37.2").EndsLine(c.output), c.name)
	}
}

func TestNewer(t *testing.T) {
	for _, c := range []struct {
		a, b Version
		want bool
	}{
		{"1.37.10", "1.37.9", true}, {"1.37.9", "1.37.10", false}, {"1.37.2", "1.37.2", false}, {"1.37.2", "1.37.2-rc.1", true},
		{"1.37.2", "kwok", false}, {"kwok", "1.37.2", false}, {"1.37.2", "", false},
	} {
		require.Equal(t, c.want, c.a.Newer(c.b), "%s and %s", c.a, c.b)
	}
}

func TestVersionsAreReadInOneSpelling(t *testing.T) {
	var r Route
	require.NoError(t, json.Unmarshal([]byte(`{"hops":["v1.37.2+vendor.1"],"target":"v1.38.1"}`), &r))
	require.Equal(t, Route{Hops: []Version{"1.37.2"}, Target: "1.38.1"}, r)
	text, err := json.Marshal(r)
	require.NoError(t, err)
	require.JSONEq(t, `{"hops":["1.37.2"],"target":"1.38.1"}`, string(text))
}

func TestRoute(t *testing.T) {
	r := Route{Hops: []Version{"1.36.9", "1.37.2"}, Target: "1.38.1"}
	require.Equal(t, []Version{"1.36.9", "1.37.2", "1.38.1"}, r.Stops())
	require.Equal(t, Route{Hops: []Version{"1.37.2"}, Target: "1.38.1"}, r.From("1.37.2"))
	require.Equal(t, Route{Target: "1.38.1"}, r.From("1.38.1"))
	require.True(t, r.Equal(r.From("1.36.9")))
	require.False(t, r.Equal(r.From("1.37.2")))
	r.Stops()[0] = "changed"
	require.Equal(t, Version("1.36.9"), r.Hops[0], "the list is the caller's own")
}
