package workflows

import (
	"context"
	"testing"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/drain"
	"ebb/internal/operation"
	"ebb/internal/policy"
)

// drainsLeaving has drains of nodes go through and leave this behind.
func (w *world) drainsLeaving(left operation.DrainLeft, nodes ...policy.Node) {
	for _, n := range nodes {
		left := left
		left.Node = n.Name
		w.env.OnActivity(act.Drain, mock.Anything, drains(n)).Return(func(context.Context, activities.DrainInput) (drain.Result, error) {
			return drain.Result{DrainLeft: left}, nil
		}).Once()
	}
}

// A machine that has volumes attached is not destroyed, nor is its node deleted.
func TestScaleDownStopsAtAttachedVolumes(t *testing.T) {
	w := newWorld(t)
	w.attached = fails(operation.TypeVolumes, "the machine of w2 is not destroyed, for volumes are still attached to it: pv-1")
	w.claims(clusterstate.Scaling, clusterstate.Running, "", settingsOf(everyNode))
	w.machinesAre(false, w2, w3)
	w.roomFor(w2, w3)
	w.cordons(w2, w3)
	w.drainSettings()
	w.drainsWell(w2, w3)
	w.uncordons(w2, w3)
	w.releases(clusterstate.Alert)

	w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Nodes: []string{"w2", "w3"}})

	kind, text := w.ended()
	require.Equal(t, operation.TypeFailed, kind)
	require.Contains(t, text, "removed none, destroyed none, still in the cluster w2, w3 (uncordoned w2, w3)")
	require.Contains(t, text, "volumes are still attached to it: pv-1")
	require.Equal(t, []string{"detach w2"}, w.called("detach", "delete", "destroy"))
}

// A machine that is down keeps its volumes until it is destroyed; a volume that is only
// there is asked for before.
func TestScaleDownOfAMachineThatIsDownDoesNotWaitForVolumes(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Scaling, clusterstate.Running, "", settingsOf(everyNode))
	w.machinesAre(true, w3)
	w.machineIsNow(true, w3) // and still is, right before it is removed
	w.roomFor(w3)
	w.removes(w3)
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Nodes: []string{"w3"}})

	require.NoError(t, w.env.GetWorkflowError())
	require.Equal(t, []string{"w3"}, w.down)
	require.Equal(t, []string{"delete w3", "destroy w3"}, w.called("detach", "delete", "destroy"))
}

// What drains leave behind is in the status, at the nodes and in the result.
func TestWhatDrainsLeaveIsTold(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Draining, clusterstate.Running, "", settingsOf(everyNode))
	w.cordons(w2, w3)
	w.drainSettings()
	w.drainsLeaving(operation.DrainLeft{Warnings: []string{"volumes still attached: pv-1"}, Skipped: []string{"app/db-0"}}, w2, w3)
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(Drain, operation.DrainInput{Cluster: "prod", Nodes: []string{"w2", "w3"}})

	require.NoError(t, w.env.GetWorkflowError())
	var result operation.DrainResult
	require.NoError(t, w.env.GetWorkflowResult(&result))
	told := func(node string) []string {
		return []string{"node " + node + ": volumes still attached: pv-1", "node " + node + ": 1 pods were still terminating and not waited for: app/db-0"}
	}
	require.Equal(t, operation.DrainResult{Drained: []string{"w2", "w3"}, Warnings: append(told("w2"), told("w3")...)}, result)
	s := w.status()
	require.Equal(t, told("w2")[0]+"; "+told("w2")[1]+"; "+told("w3")[0]+"; "+told("w3")[1], s.Warning)
	require.Equal(t, told("w3")[0]+"; "+told("w3")[1], s.Nodes[1].Detail)
}

func TestManyWarningsAreBounded(t *testing.T) {
	var w warnings
	for range 200 {
		w = append(w, "x")
	}
	require.Len(t, w.bounded(), shownWarnings+1)
	require.Equal(t, "150 more warnings", w.bounded()[shownWarnings])
	require.Equal(t, []string{"x", "x", "x"}, w[:3].bounded())
}
