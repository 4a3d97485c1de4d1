package policy

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSelectUncordon(t *testing.T) {
	ours := func(n *Node) { n.Unschedulable, n.CordonedBy = true, "drain-1" }
	nodes := []Node{node("w1", Worker, 5, ours), node("w2", Worker, 4), node("w3", Worker, 3, cordoned), node("w10", Worker, 2, cordoned)}
	for _, c := range []struct {
		name    string
		asked   []string
		want    []string
		refusal string
	}{
		{"Ebb's own cordon", []string{"w1"}, []string{"w1"}, ""},
		{"schedulable already", []string{"w2", "w1"}, []string{"w2", "w1"}, ""},
		{"somebody else's", []string{"w10", "w1", "w3"}, nil, "w3, w10: cordoned by somebody else, not by Ebb; ask them, then use kubectl uncordon w3 w10"},
		{"unknown", []string{"w9"}, nil, "node w9 is not in the cluster"},
		{"none", nil, nil, "at least one node"},
	} {
		got, err := SelectUncordon(nodes, c.asked)
		if c.refusal != "" {
			require.ErrorContains(t, err, c.refusal, c.name)
			continue
		}
		require.NoError(t, err, c.name)
		require.Equal(t, c.want, Names(got), c.name)
	}
}
