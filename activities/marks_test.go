package activities

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"ebb/internal/clusterstate"
)

// drainedBy marks a node as cordoned and drained by an operation.
func drainedBy(operation string) func(*core.Node) {
	return func(n *core.Node) {
		cordonedBy(operation)(n)
		n.Annotations[clusterstate.AnnotationDraining] = operation
	}
}

func TestDrainIsMarkedOnANodeThatTheOperationHasCordoned(t *testing.T) {
	for name, c := range map[string]struct {
		node   *core.Node
		writes int
		mark   string
	}{
		"its own":               {node("w1", cordonedBy("op-1")), 1, "op-1"},
		"marked already":        {node("w1", drainedBy("op-1")), 0, "op-1"},
		"a person's":            {node("w1", cordonedBy("")), 0, ""},
		"another operation's":   {node("w1", drainedBy("op-9")), 0, "op-9"},
		"uncordoned meanwhile":  {node("w1"), 0, ""},
		"gone, or never there":  {node("w2", cordonedBy("op-1")), 0, ""},
		"with what was left on": {node("w1", drainedBy("op-9"), cordonedBy("op-1")), 1, "op-1"},
	} {
		t.Run(name, func(t *testing.T) {
			a, client := bench(t, c.node)
			found, err := a.Clusters.Get(t.Context(), "prod")
			require.NoError(t, err)
			a.markDraining(t.Context(), found, onW1, time.Now().Add(time.Minute))
			require.Equal(t, c.writes, writes(client))
			require.Equal(t, c.mark, read(t, client, c.node.Name).Annotations["ebb/draining"])
		})
	}
}

// An API server that is away is asked again; one that refuses for good is not, and the
// deadline of the drain ends it.
func TestMarkOfADrainIsNoCondition(t *testing.T) {
	resource := schema.GroupResource{Resource: "nodes"}
	for name, c := range map[string]struct {
		answers []error // then it is accepted
		within  time.Duration
		mark    string
	}{
		"away for a moment":  {[]error{errors.New("connection refused")}, time.Minute, "op-1"},
		"refused":            {[]error{apierrors.NewForbidden(resource, "w1", errors.New("no"))}, time.Minute, ""},
		"away until the end": {[]error{errors.New("connection refused"), errors.New("connection refused")}, time.Millisecond, ""},
	} {
		t.Run(name, func(t *testing.T) {
			a, client := bench(t, node("w1", cordonedBy("op-1")))
			client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
				if len(c.answers) == 0 {
					return false, nil, nil
				}
				err := c.answers[0]
				c.answers = c.answers[1:]
				return true, nil, err
			})
			found, err := a.Clusters.Get(t.Context(), "prod")
			require.NoError(t, err)
			a.markDraining(t.Context(), found, onW1, time.Now().Add(c.within))
			require.Equal(t, c.mark, read(t, client, "w1").Annotations["ebb/draining"])
		})
	}
}

// A cordon that is taken back or over takes the mark of the drain along.
func TestMarkOfADrainGoesWithItsCordon(t *testing.T) {
	a, client := bench(t, node("w1", drainedBy("op-1")))
	_, err := a.LeaveCordoned(t.Context(), LeaveCordonedInput{NodeInput: onW1, Version: "1.37.2"})
	require.NoError(t, err)
	retry := NodeInput{Cluster: "prod", Operation: "op-2", Node: "w1"}
	_, err = a.TakeCordonOver(t.Context(), retry)
	require.NoError(t, err)
	require.Equal(t, "op-2", read(t, client, "w1").Annotations["ebb/draining"], "it is drained, and not drained again")
	done, err := a.Uncordon(t.Context(), retry)
	require.NoError(t, err)
	require.True(t, done.Uncordoned)
	require.Empty(t, read(t, client, "w1").Annotations)
}

// What an earlier operation has left on a node says nothing of the next one's drain.
func TestCordonRemovesTheMarkOfAnEarlierDrain(t *testing.T) {
	a, client := bench(t, node("w1", drainedBy("op-1"), func(n *core.Node) { n.Spec.Unschedulable = false }))
	_, err := a.Cordon(t.Context(), onW1)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"ebb/cordoned-by": "op-1"}, read(t, client, "w1").Annotations)
}
