package policy

import (
	"testing"

	"github.com/stretchr/testify/require"

	"ebb/internal/clusterstate"
)

func TestUnrecovered(t *testing.T) {
	failed := clusterstate.Record{State: clusterstate.Alert, Target: "1.37.2"}
	other := clusterstate.Record{State: clusterstate.Alert}
	ours := func(n *Node) { n.Unschedulable, n.CordonedBy = true, "down-1" }
	left := func(n *Node) { n.CordonedBy = "down-1" } // somebody else uncordoned it
	for _, c := range []struct {
		name   string
		record clusterstate.Record
		nodes  []Node
		want   []string
	}{
		{"whole", other, []Node{node("cp1", FirstControlPlane, 9), node("w1", Worker, 2)}, nil},
		{"an operator's cordon", other, []Node{node("cp1", FirstControlPlane, 9), node("w1", Worker, 2, cordoned)}, nil},
		{"a cordon that was taken back by hand", other, []Node{node("cp1", FirstControlPlane, 9), node("w1", Worker, 2, left)}, nil},
		{
			"every fault", other, []Node{node("cp1", FirstControlPlane, 9, notReady), node("w1", Worker, 2, ours), node("w2", Worker, 2, recorded("1.37.2"))},
			[]string{"node cp1 is not Ready", "node w1 bears the cordon of down-1", "node w2 was upgraded to 1.37.2 and reports 1.36.3"},
		},
		{
			"half upgraded", failed, []Node{node("cp1", FirstControlPlane, 9, at("v1.37.2"), recorded("1.37.2")), node("w1", Worker, 2)},
			[]string{"node w1 is at 1.36.3, cp1 at 1.37.2: the upgrade to 1.37.2 is not complete"},
		},
		{"finished by hand", failed, []Node{node("cp1", FirstControlPlane, 9, at("v1.37.2"), recorded("1.37.2")), node("w1", Worker, 2, at("v1.37.2"))}, nil},
		{"failed before the first node", failed, []Node{node("cp1", FirstControlPlane, 9), node("w1", Worker, 2)}, nil},
		{"a node left to hands", failed, []Node{node("cp1", FirstControlPlane, 9, at("v1.37.2")), node("w1", Worker, 2, manual)}, nil},
		{"mixed, but no upgrade failed", other, []Node{node("cp1", FirstControlPlane, 9, at("v1.37.2")), node("w1", Worker, 2)}, nil},
	} {
		require.Equal(t, c.want, Unrecovered(c.record, c.nodes), c.name)
	}
}

func TestReachedLeavesOutWhatIsUpgradedByHand(t *testing.T) {
	failed := clusterstate.Record{State: clusterstate.Alert, Target: "1.37.2"}
	byHand := []Node{node("cp1", FirstControlPlane, 9, at("v1.37.2"), manual), node("cp2", ControlPlane, 8), node("w1", Worker, 2)}
	require.Empty(t, Reached(failed, byHand), "one that is upgraded by hand does not tell for the others")
	require.EqualValues(t, "1.37.2", Reached(failed, []Node{node("cp1", FirstControlPlane, 9, manual), node("w1", Worker, 2, at("v1.37.2"))}))
	require.Empty(t, Reached(failed, byHand[:1]))
	require.Empty(t, Reached(clusterstate.Record{}, byHand))
	require.Equal(t, []string{"node w1 is at 1.36.3, cp2 at 1.37.1: the upgrade to 1.37.2 is not complete"}, Unrecovered(failed,
		[]Node{byHand[0], node("cp2", ControlPlane, 8, at("v1.37.1")), byHand[2]}))
}
