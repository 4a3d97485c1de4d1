package auth

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGrantsDoNotMix(t *testing.T) {
	p := &Principal{Grants: []Grant{{Viewer, []string{"*"}}, {Operator, []string{"prod"}}, {Admin, nil}}}
	require.True(t, p.May(Viewer, "dev"))
	require.False(t, p.May(Operator, "dev"), "operator of prod and viewer of all is no operator of all")
	require.True(t, p.May(Operator, "prod"))
	require.False(t, p.May(Admin, "prod"))
	require.False(t, p.HasOnAnyCluster(Admin), "a role on no cluster is none")
	require.False(t, p.HasOnAllClusters(Operator))
	_, all := p.VisibleClusters()
	require.True(t, all)
	names, all := (&Principal{Grants: []Grant{{Viewer, []string{"b", "a"}}, {Admin, []string{"a"}}}}).VisibleClusters()
	require.False(t, all)
	require.Equal(t, []string{"a", "b"}, names)
	require.False(t, (&Principal{Grants: []Grant{{Role("boss"), []string{"*"}}}}).May(Viewer, "prod"), "a role that is none")
}
