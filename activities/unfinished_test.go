package activities

import (
	"testing"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
)

func TestCordonOfAnUnfinishedUpgradeIsTakenOver(t *testing.T) {
	a, client := bench(t, node("w1", cordonedBy("op-1")))
	got, err := a.LeaveCordoned(t.Context(), LeaveCordonedInput{NodeInput: onW1, Version: "1.37.2"})
	require.NoError(t, err)
	require.Equal(t, UnfinishedResult{Ours: true}, got)
	require.Equal(t, "op-1", read(t, client, "w1").Annotations["ebb/upgrade-unfinished"])

	retry := NodeInput{Cluster: "prod", Operation: "op-2", Node: "w1"}
	for range 2 { // the answer to the first may be lost
		got, err = a.TakeCordonOver(t.Context(), retry)
		require.NoError(t, err)
		require.True(t, got.Ours)
	}
	done, err := a.Uncordon(t.Context(), retry)
	require.NoError(t, err)
	require.True(t, done.Uncordoned)
	n := read(t, client, "w1")
	require.False(t, n.Spec.Unschedulable)
	require.Empty(t, n.Annotations)
}

// It was only not seen to be Ready: nothing keeps pods away from it.
func TestNodeWhoseKubeletLivesIsNotLeftCordoned(t *testing.T) {
	a, client := bench(t, node("w1", cordonedBy("op-1"), func(n *core.Node) { n.Status.NodeInfo.KubeletVersion = "v1.37.2" }))
	got, err := a.LeaveCordoned(t.Context(), LeaveCordonedInput{NodeInput: onW1, Version: "1.37.2"})
	require.NoError(t, err)
	require.Equal(t, UnfinishedResult{Lives: true}, got)
	require.Zero(t, writes(client))
}

func TestCordonThatIsNotOfAnUpgradeIsNotTakenOver(t *testing.T) {
	a, client := bench(t, node("w1", cordonedBy("drain-1")))
	for _, mark := range []func() (UnfinishedResult, error){
		func() (UnfinishedResult, error) {
			return a.LeaveCordoned(t.Context(), LeaveCordonedInput{NodeInput: onW1, Version: "1.37.2"})
		},
		func() (UnfinishedResult, error) { return a.TakeCordonOver(t.Context(), onW1) },
	} {
		got, err := mark()
		require.NoError(t, err)
		require.False(t, got.Ours)
	}
	require.Equal(t, map[string]string{"ebb/cordoned-by": "drain-1"}, read(t, client, "w1").Annotations)
	require.Zero(t, writes(client))
}
