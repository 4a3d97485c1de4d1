package activities

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCordonOfAnUnfinishedUpgradeIsTakenOver(t *testing.T) {
	a, client := bench(t, node("w1", cordonedBy("op-1")))
	got, err := a.LeaveCordoned(t.Context(), onW1)
	require.NoError(t, err)
	require.True(t, got.Ours)
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

func TestCordonThatIsNotOfAnUpgradeIsNotTakenOver(t *testing.T) {
	a, client := bench(t, node("w1", cordonedBy("drain-1")))
	for _, mark := range []func() (UnfinishedResult, error){
		func() (UnfinishedResult, error) { return a.LeaveCordoned(t.Context(), onW1) },
		func() (UnfinishedResult, error) { return a.TakeCordonOver(t.Context(), onW1) },
	} {
		got, err := mark()
		require.NoError(t, err)
		require.False(t, got.Ours)
	}
	require.Equal(t, map[string]string{"ebb/cordoned-by": "drain-1"}, read(t, client, "w1").Annotations)
	require.Zero(t, writes(client))
}
