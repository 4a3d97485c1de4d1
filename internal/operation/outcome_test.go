package operation

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOutcomeNamesNodesInTheOrderThatPeopleCount(t *testing.T) {
	drained := Outcome{Kind: KindDrain, Complete: true, Drained: []string{"w10", "w9"}}
	require.Equal(t, "drained w9, w10", drained.Done())
	require.Equal(t, []string{"w10", "w9"}, drained.Drained, "which is as it was done")

	back := Outcome{Kind: KindDrain, Uncordon: Uncordon{
		Uncordoned: []string{"w10", "w2"}, NotUncordoned: []NodeFault{{Node: "w11", Text: "gone"}, {Node: "w3", Text: "away"}},
	}}
	require.Equal(t, "rolled back: uncordoned w2, w10; could not uncordon w3 (away), w11 (gone)", back.Done())
}
