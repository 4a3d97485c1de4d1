package workflows

import (
	"context"
	"testing"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/operation"
	"ebb/internal/policy"
)

// left is a node that an operation has left cordoned.
func drained(n policy.Node, operation string) policy.Node {
	n.Unschedulable, n.CordonedBy = true, operation
	return n
}

// gives answers the uncordon of a node that an operation has left cordoned.
func (w *world) gives(n policy.Node, done bool, err error) {
	w.env.OnActivity(act.Uncordon, mock.Anything, activities.NodeInput{Cluster: "prod", Operation: n.CordonedBy, Node: n.Name}).
		Return(func(context.Context, activities.NodeInput) (activities.UncordonResult, error) {
			w.note("uncordon " + n.Name)
			return activities.UncordonResult{Uncordoned: done}, err
		}).Once()
}

func TestUncordonGivesBackWhatOperationsLeft(t *testing.T) {
	for _, from := range []clusterstate.State{clusterstate.Running, clusterstate.Alert} {
		w := newWorld(t)
		w.claims(clusterstate.Draining, from, "", settingsOf([]policy.Node{cp1, drained(w1, "drain-1"), drained(w2, "drain-2"), w3}))
		w.gives(drained(w1, "drain-1"), true, nil)
		w.gives(drained(w2, "drain-2"), false, nil)
		w.releases(from)

		w.env.ExecuteWorkflow(Uncordon, operation.UncordonInput{Cluster: "prod", Nodes: []string{"w3", "w2", "w1"}})

		var result operation.UncordonResult
		require.NoError(t, w.env.GetWorkflowResult(&result))
		require.Equal(t, operation.UncordonResult{Uncordoned: []string{"w1"}, Skipped: []string{"w3", "w2"}}, result)
		require.Equal(t, "uncordoned w1", w.status().Step)
	}
}

func TestUncordonOfSomebodyElsesCordonIsRefused(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Draining, clusterstate.Running, "", settingsOf([]policy.Node{cp1, drained(w1, "drain-1"), drained(w2, "")}))
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(Uncordon, operation.UncordonInput{Cluster: "prod", Nodes: []string{"w1", "w2"}})

	kind, text := w.ended()
	require.Equal(t, operation.TypeRefused, kind)
	require.Contains(t, text, "w2: cordoned by somebody else")
}

func TestUncordonThatFailsLeavesTheClusterAsItCame(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Draining, clusterstate.Running, "", settingsOf([]policy.Node{cp1, drained(w1, "drain-1"), drained(w2, "drain-1")}))
	w.gives(drained(w1, "drain-1"), true, nil)
	w.gives(drained(w2, "drain-1"), false, fails(operation.TypeConfig, "forbidden"))
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(Uncordon, operation.UncordonInput{Cluster: "prod", Nodes: []string{"w1", "w2"}})

	kind, text := w.ended()
	require.Equal(t, operation.TypeFailed, kind)
	require.Contains(t, text, "uncordoned w1; could not uncordon w2 (forbidden); the cluster is in state Running")
}

func TestUncordonThatIsCancelledHasTakenBackNothing(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Draining, clusterstate.Alert, "", settingsOf([]policy.Node{cp1, drained(w1, "drain-1")}))
	w.env.OnActivity(act.Uncordon, mock.Anything, mock.Anything).Return(func(context.Context, activities.NodeInput) (activities.UncordonResult, error) {
		return activities.UncordonResult{}, w.cancelDuring("uncordon w1")
	}).Once()
	w.releases(clusterstate.Alert)

	w.env.ExecuteWorkflow(Uncordon, operation.UncordonInput{Cluster: "prod", Nodes: []string{"w1"}})

	kind, text := w.ended()
	require.Equal(t, "Canceled", kind)
	require.Contains(t, text, "no node was uncordoned; could not uncordon w1 (cancelled); the cluster is in state Alert")
}
