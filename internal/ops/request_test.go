package ops

import (
	"testing"
	"time"

	"ebb/internal/operation"
	"ebb/internal/version"

	"github.com/stretchr/testify/require"
)

func TestNewIDTellsWhatWhereAndWhen(t *testing.T) {
	at := time.Date(2026, 12, 1, 2, 47, 11, 0, time.FixedZone("CET", 3600))
	seen := map[string]bool{}
	for kind, word := range map[operation.Kind]string{
		operation.KindUpgrade: "upgrade", operation.KindScaleDown: "scale-down", operation.KindDrain: "drain",
		operation.KindUncordon: "uncordon",
	} {
		id, err := NewID(kind, "prod", at)
		require.NoError(t, err)
		require.Regexp(t, "^"+word+"-prod-20261201-014711-[0-9a-f]{4}$", id)
		require.True(t, idShape.MatchString(id))
		seen[id] = true
	}
	require.Len(t, seen, 4)
}

func TestValidateReportsEverything(t *testing.T) {
	for name, c := range map[string]struct {
		request Request
		faults  []string
	}{
		"good upgrade":       {Request{ID: "a", Kind: operation.KindUpgrade, Cluster: "prod", Route: version.Route{Target: version.Of("v1.37.2")}}, nil},
		"good drain":         {Request{ID: "a", Kind: operation.KindDrain, Cluster: "prod", Nodes: []string{"w1"}}, nil},
		"good count":         {Request{ID: "a", Kind: operation.KindScaleDown, Cluster: "prod", Count: 1}, nil},
		"nothing":            {Request{}, []string{`operation ID ""`, "no cluster", `kind of operation ""`}},
		"good uncordon":      {Request{ID: "a", Kind: operation.KindUncordon, Cluster: "prod", Nodes: []string{"w1"}}, nil},
		"strict uncordon":    {Request{ID: "a", Kind: operation.KindUncordon, Cluster: "prod", Strict: true}, []string{"no node to uncordon", "nothing to be strict about"}},
		"slash in the ID":    {Request{ID: "a/b", Kind: operation.KindDrain, Cluster: "prod", Nodes: []string{"w1"}}, []string{`operation ID "a/b"`}},
		"no version":         {Request{ID: "a", Kind: operation.KindUpgrade, Cluster: "prod", Route: version.Route{Target: "1.37"}}, []string{`target version "1.37": want MAJOR.MINOR.PATCH`}},
		"no node":            {Request{ID: "a", Kind: operation.KindDrain, Cluster: "prod"}, []string{"no node to drain"}},
		"empty node":         {Request{ID: "a", Kind: operation.KindDrain, Cluster: "prod", Nodes: []string{""}}, []string{"a node name is empty"}},
		"nodes and count":    {Request{ID: "a", Kind: operation.KindScaleDown, Cluster: "prod", Nodes: []string{"w1"}, Count: 1}, []string{"not both"}},
		"neither":            {Request{ID: "a", Kind: operation.KindScaleDown, Cluster: "prod"}, []string{"a count of at least 1"}},
		"less than one node": {Request{ID: "a", Kind: operation.KindScaleDown, Cluster: "prod", Count: -1}, []string{"a count of at least 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.request.Validate()
			if c.faults == nil {
				require.NoError(t, err)
				return
			}
			var bad *RequestError
			require.ErrorAs(t, err, &bad)
			require.Len(t, bad.Faults, len(c.faults))
			for i, fault := range c.faults {
				require.Contains(t, bad.Faults[i], fault)
			}
		})
	}
}

func TestSameIgnoresSpellingAndOrder(t *testing.T) {
	up := Request{ID: "a", Kind: operation.KindUpgrade, Cluster: "prod", Route: version.Route{Target: "1.37.2"}}
	spelled := up
	spelled.Target = version.Of("v1.37.2+vendor.1")
	require.True(t, up.same(spelled))
	spelled.Target = "1.37.20"
	require.False(t, up.same(spelled))
	down := Request{Kind: operation.KindScaleDown, Cluster: "prod", Nodes: []string{"w1", "w2"}}
	require.True(t, down.same(Request{Kind: operation.KindScaleDown, Cluster: "prod", Nodes: []string{"w2", "w1"}}))
	require.False(t, down.same(Request{Kind: operation.KindScaleDown, Cluster: "prod", Nodes: []string{"w1"}}))
}

func TestParseKind(t *testing.T) {
	kind, err := ParseKind("scale-down")
	require.NoError(t, err)
	require.Equal(t, operation.KindScaleDown, kind)
	_, err = ParseKind("reboot")
	require.EqualError(t, err, `there is no kind of operation "reboot", only drain, scale-down, uncordon, upgrade`)
}
