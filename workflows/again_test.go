package workflows

import (
	"testing"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/operation"
	"ebb/internal/policy"
)

func TestMachineOfANodeThatWasRegisteredAgainIsNotDestroyed(t *testing.T) {
	for name, prepare := range map[string]func(*world){
		"before the removal": func(w *world) {
			w.became = map[string]activities.LookAgainResult{"w2": {Replaced: true}}
		},
		"in that moment": func(w *world) {
			w.env.OnActivity(act.DeleteNode, mock.Anything, machine(w2)).Return(activities.DeleteNodeResult{Replaced: true}, nil).Once()
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			prepare(w)
			w.claims(clusterstate.Scaling, clusterstate.Running, "", settingsOf(everyNode))
			w.machinesAre(false, w2, w3)
			w.roomFor(w2, w3)
			w.cordons(w2, w3)
			w.drainSettings()
			w.drainsWell(w2, w3)
			w.removes(w3)
			w.releases(clusterstate.Running)

			w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Nodes: []string{"w2", "w3"}})

			var result operation.ScaleDownResult
			require.NoError(t, w.env.GetWorkflowResult(&result))
			require.Equal(t, operation.ScaleDownResult{Removed: []string{"w2", "w3"}, Destroyed: []string{"w3"}, Size: 3}, result)
			require.Equal(t, []string{"destroy w3"}, w.called("destroy"))
		})
	}
}

func TestMachineThatCameBackIsNotDestroyed(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Scaling, clusterstate.Running, "", settingsOf(everyNode))
	w.machinesAre(true, w3)
	w.roomFor(w3)
	w.machineIsNow(false, w3)
	w.uncordons(w3)
	w.releases(clusterstate.Alert)

	w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Nodes: []string{"w3"}})

	kind, text := w.ended()
	require.Equal(t, operation.TypeFailed, kind)
	require.Contains(t, text, "the machine of w3 was down and is up again")
	require.Empty(t, w.called("delete", "destroy"))
}

func TestNodeThatIsGoneIsDone(t *testing.T) {
	for _, became := range []activities.LookAgainResult{{Gone: true}, {Replaced: true}} {
		w := newWorld(t)
		w.became = map[string]activities.LookAgainResult{"w1": became}
		nodes := []policy.Node{cp1, w1, w2}
		w.claims(clusterstate.Upgrading, clusterstate.Running, target, settingsOf(nodes))
		w.fit(nodes...)
		w.runs(activities.PhaseStage, nodes...)
		w.drainSettings()
		w.upgrades(cp1, w2)
		if became.Gone {
			w.env.OnActivity(act.Node, mock.Anything, on(w1)).Return(activities.NodeResult{}, fails(operation.TypeConfig, "node w1 is not in cluster prod any more")).Once()
		} else {
			other := upgraded(w1)
			other.UID = "u-other"
			w.reports(other)
		}
		w.verifies(upgraded(cp1), upgraded(w2))
		w.releases(clusterstate.Running)

		w.env.ExecuteWorkflow(Upgrade, upgrade())

		var result operation.UpgradeResult
		require.NoError(t, w.env.GetWorkflowResult(&result))
		require.Equal(t, []string{"cp1", "w2"}, result.Upgraded)
		require.Equal(t, operation.PhaseSkipped, w.status().Nodes[1].Phase)
		require.Contains(t, w.status().Nodes[1].Detail, "gone")
	}
}
