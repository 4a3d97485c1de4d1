package workflows

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/drain"
	"ebb/internal/operation"
	"ebb/internal/policy"
)

func (w *world) machinesAre(down bool, nodes ...policy.Node) {
	var found activities.MachinesResult
	if down {
		found.Down = policy.Names(nodes)
	}
	w.env.OnActivity(act.Machines, mock.Anything, activities.MachinesInput{Cluster: "prod", Nodes: nodes}).Return(found, nil).Once()
}

// machineIsNow is of the look at a machine that was down, right before it is destroyed.
func (w *world) machineIsNow(down bool, n policy.Node) {
	w.env.OnActivity(act.Machine, mock.Anything, machine(n)).Return(activities.MachineResult{Down: down}, nil).Once()
}

// roomFor expects that the pods of these nodes are looked after, and find room.
func (w *world) roomFor(nodes ...policy.Node) {
	w.env.OnActivity(act.Capacity, mock.Anything, activities.CapacityInput{Cluster: "prod", Nodes: policy.Names(nodes)}).
		Return(activities.CapacityResult{}, nil).Once()
}

func (w *world) removes(nodes ...policy.Node) {
	for _, n := range nodes {
		w.deletes(n)
		w.env.OnActivity(act.DestroyMachine, mock.Anything, machine(n)).Return(func(context.Context, activities.MachineInput) (activities.DestroyMachineResult, error) {
			w.note("destroy " + n.Name)
			return activities.DestroyMachineResult{}, nil
		}).Once()
	}
}

func (w *world) deletes(n policy.Node) {
	w.env.OnActivity(act.DeleteNode, mock.Anything, machine(n)).Return(func(context.Context, activities.MachineInput) (activities.DeleteNodeResult, error) {
		w.note("delete " + n.Name)
		return activities.DeleteNodeResult{}, nil
	}).Once()
}

func TestScaleDownCordonsAllBeforeItDrainsAny(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Scaling, clusterstate.Running, "", settingsOf(everyNode))
	w.machinesAre(false, w2, w3)
	w.roomFor(w2, w3)
	w.cordons(w2, w3)
	w.drainSettings()
	w.drainsWell(w2, w3)
	w.removes(w2, w3)
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Nodes: []string{"w2", "w3"}})

	var result operation.ScaleDownResult
	require.NoError(t, w.env.GetWorkflowResult(&result))
	require.Equal(t, operation.ScaleDownResult{Removed: []string{"w2", "w3"}, Destroyed: []string{"w2", "w3"}, Size: 2}, result)
	require.ElementsMatch(t, []string{"cordon w2", "cordon w3"}, w.calls[:2])
	require.Equal(t, []string{"drain w2", "drain w3", "detach w2", "delete w2", "destroy w2", "detach w3", "delete w3", "destroy w3", "release Running"}, w.calls[2:])
}

func TestScaleDownByCountTakesTheLastOfOneAge(t *testing.T) {
	w := newWorld(t)
	w10 := w3
	w10.Name = "w10"
	w.claims(clusterstate.Scaling, clusterstate.Running, "", settingsOf([]policy.Node{cp1, w2, w10}))
	w.machinesAre(false, w10)
	w.roomFor(w10)
	w.cordons(w10)
	w.drainSettings()
	w.drainsWell(w10)
	w.removes(w10)
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Count: 1})

	require.NoError(t, w.env.GetWorkflowError())
	require.Contains(t, w.calls, "delete w10")
}

func TestScaleDownRollsBackWhenADrainFails(t *testing.T) {
	for _, from := range []clusterstate.State{clusterstate.Running, clusterstate.Alert} {
		t.Run(string(from), func(t *testing.T) {
			w := newWorld(t)
			w.claims(clusterstate.Scaling, from, "", settingsOf(everyNode))
			w.machinesAre(false, w2, w3)
			w.roomFor(w2, w3)
			w.cordons(w2, w3)
			w.drainSettings()
			w.drainsWell(w2)
			w.drainFails(w3, 3)
			w.uncordons(w2, w3)
			w.releases(from)

			start := w.env.Now()
			w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Nodes: []string{"w2", "w3"}})

			kind, text := w.ended()
			require.Equal(t, operation.TypeRolledBack, kind)
			require.Contains(t, text, "drain node w3: default/web-1 blocked by budget default/web")
			require.Contains(t, text, "nothing was removed, uncordoned w2, w3")
			require.Contains(t, text, "the cluster is in state "+string(from))
			require.Equal(t, []string{"drain w2", "drain w3", "drain w3", "drain w3"}, w.called("drain"))
			require.Empty(t, w.called("delete", "destroy"))
			require.Equal(t, 60*time.Second, w.env.Now().Sub(start).Truncate(time.Second), "two waits between three attempts")
		})
	}
}

func TestScaleDownPastItsDeadlineMakesNoMoreAttempts(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Scaling, clusterstate.Running, "", settingsOf(everyNode))
	w.machinesAre(false, w2, w3)
	w.roomFor(w2, w3)
	w.cordons(w2, w3)
	w.drainSettings()
	w.env.OnActivity(act.Drain, mock.Anything, drains(w2)).After(2*time.Hour).Return(drain.Result{DrainLeft: operation.DrainLeft{Node: "w2"}}, nil).Once()
	w.uncordons(w2, w3)
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Nodes: []string{"w2", "w3"}})

	kind, text := w.ended()
	require.Equal(t, operation.TypeRolledBack, kind)
	require.Contains(t, text, "w3: no time left before the deadline")
}

func TestDrainAttemptIsCutToTheDeadlineAndNotRepeatedPastIt(t *testing.T) {
	w := newWorld(t)
	survey := settingsOf(everyNode)
	survey.Scale.Timeout = 2 * time.Minute
	w.claims(clusterstate.Scaling, clusterstate.Running, "", survey)
	w.machinesAre(false, w3)
	w.roomFor(w3)
	w.cordons(w3)
	w.drainSettings()
	var deadline time.Time
	w.env.OnActivity(act.Drain, mock.Anything, drains(w3)).After(100 * time.Second).Return(func(_ context.Context, in activities.DrainInput) (drain.Result, error) {
		deadline = in.Deadline
		return drain.Result{}, fails(operation.TypeDrain, "drain node w3: time is over")
	}).Once()
	w.uncordons(w3)
	w.releases(clusterstate.Running)
	start := w.env.Now()

	w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Count: 1})

	kind, _ := w.ended()
	require.Equal(t, operation.TypeRolledBack, kind)
	require.Less(t, deadline.Sub(start), 121*time.Second, "five minutes of drain.timeout, cut to the two that are left")
}

func TestScaleDownThatFailsAfterTheDrainsIsAlertWithTrueFigures(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Scaling, clusterstate.Running, "", settingsOf(everyNode))
	w.machinesAre(false, w2, w3)
	w.roomFor(w2, w3)
	w.cordons(w2, w3)
	w.drainSettings()
	w.drainsWell(w2, w3)
	w.deletes(w2)
	w.env.OnActivity(act.DestroyMachine, mock.Anything, machine(w2)).
		Return(activities.DestroyMachineResult{}, fails(operation.TypeConfig, "destroy the machine of w2: quota service is down")).Once()
	w.uncordons(w3)
	w.releases(clusterstate.Alert)

	w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Nodes: []string{"w2", "w3"}})

	kind, text := w.ended()
	require.Equal(t, operation.TypeFailed, kind)
	require.Contains(t, text, "quota service is down")
	require.Contains(t, text, "removed w2, destroyed none, still in the cluster w3 (uncordoned w3); the cluster has 3 nodes")
}

func TestScaleDownWithoutRoom(t *testing.T) {
	const warning = "1 of 4 pods would find no room on the nodes that stay: shop/db-0 (requests memory 8Gi, more than any of 2 nodes has free)"
	short := func(w *world) {
		w.claims(clusterstate.Scaling, clusterstate.Running, "", settingsOf(everyNode))
		w.machinesAre(false, w3)
		w.env.OnActivity(act.Capacity, mock.Anything, activities.CapacityInput{Cluster: "prod", Nodes: []string{"w3"}}).
			Return(activities.CapacityResult{Warning: warning}, nil).Once()
	}
	t.Run("is a warning", func(t *testing.T) {
		w := newWorld(t)
		short(w)
		w.cordons(w3)
		w.drainSettings()
		w.drainsWell(w3)
		w.removes(w3)
		w.releases(clusterstate.Running)
		w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Count: 1})
		require.NoError(t, w.env.GetWorkflowError())
		require.Equal(t, warning, w.status().Warning)
		require.Contains(t, w.status().Markdown(), "**Warning**: "+warning)
	})
	t.Run("is a refusal when strict", func(t *testing.T) {
		w := newWorld(t)
		short(w)
		w.releases(clusterstate.Running)
		w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Count: 1, Strict: true})
		kind, text := w.ended()
		require.Equal(t, operation.TypeRefused, kind)
		require.Contains(t, text, "nothing was changed; the cluster is in state Running; cause: nothing was touched, because of --strict: "+warning)
		require.Empty(t, w.called("cordon"))
	})
}

func TestScaleDownLeavesAMachineThatIsDownAlone(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Scaling, clusterstate.Running, "", settingsOf(everyNode))
	w.machinesAre(true, w3)
	w.machineIsNow(true, w3) // and still is
	w.roomFor(w3)
	w.removes(w3)
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Nodes: []string{"w3"}})

	require.NoError(t, w.env.GetWorkflowError())
	require.Empty(t, w.called("cordon", "drain"))
}

func TestScaleDownOfAControlPlaneResetsItFirst(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Scaling, clusterstate.Running, "", settingsOf([]policy.Node{cp1, cp2, w1}))
	w.machinesAre(false, cp2)
	w.env.OnActivity(act.Health, mock.Anything, activities.HealthInput{Cluster: "prod", Except: "cp2", Operation: "op-1"}).Return(activities.HealthResult{}, nil).Twice()
	w.env.OnActivity(act.Etcd, mock.Anything, activities.EtcdInput{Cluster: "prod", Except: "cp2"}).Return(activities.EtcdResult{}, nil).Twice() // before anything is touched, and before the reset
	w.roomFor(cp2)
	w.cordons(cp2)
	w.drainSettings()
	w.drainsWell(cp2)
	w.env.OnActivity(act.RunScript, mock.Anything, mock.MatchedBy(func(in activities.ScriptInput) bool {
		return in.On.Name == "cp2" && in.Phase == activities.PhaseReset
	})).Return(func(context.Context, activities.ScriptInput) (activities.ScriptResult, error) {
		w.note("reset cp2")
		return activities.ScriptResult{}, nil
	}).Once()
	w.leavesEtcd(cp2, activities.LeaveEtcdResult{Removed: true}, nil)
	w.removes(cp2)
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Nodes: []string{"cp2"}})

	require.NoError(t, w.env.GetWorkflowError())
	require.Equal(t, []string{"drain cp2", "reset cp2", "etcd cp2", "delete cp2", "destroy cp2"}, w.called("drain", "reset", "etcd", "delete", "destroy"))
	require.Contains(t, w.status().Warning, "control plane cp2 had not left etcd")
}

func (w *world) leavesEtcd(n policy.Node, left activities.LeaveEtcdResult, err error) {
	w.env.OnActivity(act.LeaveEtcd, mock.Anything, activities.LeaveEtcdInput{Cluster: "prod", Node: n}).
		Return(func(context.Context, activities.LeaveEtcdInput) (activities.LeaveEtcdResult, error) {
			w.note("etcd " + n.Name)
			return left, err
		}).Once()
}

// Nobody else would remove the member of a machine that is gone.
func TestScaleDownOfAControlPlaneThatDoesNotLeaveEtcd(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Scaling, clusterstate.Running, "", settingsOf([]policy.Node{cp1, cp2, w1}))
	w.machinesAre(false, cp2)
	w.env.OnActivity(act.Health, mock.Anything, mock.Anything).Return(activities.HealthResult{}, nil)
	w.env.OnActivity(act.Etcd, mock.Anything, mock.Anything).Return(activities.EtcdResult{}, nil)
	w.roomFor(cp2)
	w.cordons(cp2)
	w.drainSettings()
	w.drainsWell(cp2)
	w.env.OnActivity(act.RunScript, mock.Anything, mock.Anything).Return(activities.ScriptResult{}, nil).Once()
	w.leavesEtcd(cp2, activities.LeaveEtcdResult{}, fails(operation.TypeNodeAccess, "no other control plane is Ready"))
	w.uncordons(cp2)
	w.releases(clusterstate.Alert)

	w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Nodes: []string{"cp2"}})

	kind, text := w.ended()
	require.Equal(t, operation.TypeFailed, kind)
	require.Contains(t, text, "no other control plane is Ready")
	require.Empty(t, w.called("delete", "destroy"))
}

func TestScaleDownLeavesNoSickEtcdBehind(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Scaling, clusterstate.Running, "", settingsOf([]policy.Node{cp1, cp2, w1}))
	w.machinesAre(false, cp2)
	w.env.OnActivity(act.Health, mock.Anything, activities.HealthInput{Cluster: "prod", Except: "cp2", Operation: "op-1"}).Return(activities.HealthResult{}, nil).Once()
	w.env.OnActivity(act.Etcd, mock.Anything, activities.EtcdInput{Cluster: "prod", Except: "cp2"}).
		Return(activities.EtcdResult{Faults: []string{"etcd member cp1 is not healthy: no answer within 3s"}}, nil).Once()
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Nodes: []string{"cp2"}})

	kind, text := w.ended()
	require.Equal(t, operation.TypeRefused, kind)
	require.Contains(t, text, "control plane cp2 cannot leave: etcd member cp1 is not healthy")
}

func TestRefusedClaimTouchesNothing(t *testing.T) {
	w := newWorld(t)
	w.env.OnActivity(act.Claim, mock.Anything, activities.ClaimInput{Cluster: "prod", Operation: op, State: clusterstate.Scaling}).
		Return(activities.ClaimResult{}, fails(operation.TypeRefused, "cluster prod: held by up-7")).Once()

	w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Count: 1})

	kind, text := w.ended()
	require.Equal(t, operation.TypeRefused, kind)
	require.Contains(t, text, "held by up-7")
}

func TestWrongRequestGivesTheClusterBack(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Scaling, clusterstate.Alert, "", settingsOf(everyNode))
	w.releases(clusterstate.Alert)

	w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Nodes: []string{"w9"}})

	kind, text := w.ended()
	require.Equal(t, operation.TypeRefused, kind)
	require.Contains(t, text, "node w9 is not in the cluster")
}

func TestTakeoverTakesBackTheCordonsOfTheDead(t *testing.T) {
	w := newWorld(t)
	w.env.OnActivity(act.Claim, mock.Anything, mock.Anything).
		Return(activities.ClaimResult{From: clusterstate.Running, TakenOver: "dead-1"}, nil).Once()
	w.env.OnActivity(act.UncordonAll, mock.Anything, activities.UncordonAllInput{Cluster: "prod", Operation: "dead-1", Holder: op}).
		Return(activities.UncordonAllResult{Nodes: []string{"w1"}}, nil).Once()
	w.env.OnActivity(act.Survey, mock.Anything, mock.Anything).Return(settingsOf(everyNode), nil).Once()
	w.machinesAre(true, w3)
	w.machineIsNow(true, w3) // and still is
	w.roomFor(w3)
	w.removes(w3)
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Count: 1})

	require.NoError(t, w.env.GetWorkflowError())
}

// A cancellation at each step: until the drains are through it takes everything
// back, afterwards it changes nothing.
func TestScaleDownCancelledAtEachStep(t *testing.T) {
	t.Run("claim", func(t *testing.T) {
		w := newWorld(t)
		w.env.OnActivity(act.Claim, mock.Anything, mock.Anything).Return(func(context.Context, activities.ClaimInput) (activities.ClaimResult, error) {
			return activities.ClaimResult{}, w.cancelDuring("claim")
		}).Once()
		w.releases("") // it may have got the cluster after all
		w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Count: 1})
		kind, text := w.ended()
		require.Equal(t, "Canceled", kind)
		require.Contains(t, text, "nothing was changed")
	})
	t.Run("cordon", func(t *testing.T) {
		w := newWorld(t)
		w.claims(clusterstate.Scaling, clusterstate.Running, "", settingsOf(everyNode))
		w.machinesAre(false, w3)
		w.roomFor(w3)
		w.env.OnActivity(act.Cordon, mock.Anything, on(w3)).Return(func(context.Context, activities.NodeInput) (activities.CordonResult, error) {
			return activities.CordonResult{}, w.cancelDuring("cordon w3")
		}).Once()
		w.uncordons(w3)
		w.releases(clusterstate.Running)
		w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Count: 1})
		kind, text := w.ended()
		require.Equal(t, "Canceled", kind)
		require.Contains(t, text, "rolled back: nothing was removed, uncordoned w3; the cluster is in state Running; cause: cancelled")
	})
	t.Run("drain", func(t *testing.T) {
		w := newWorld(t)
		w.claims(clusterstate.Scaling, clusterstate.Running, "", settingsOf(everyNode))
		w.machinesAre(false, w3, w2)
		w.roomFor(w3, w2)
		w.cordons(w3, w2)
		w.drainSettings()
		w.env.OnActivity(act.Drain, mock.Anything, drains(w3)).Return(func(context.Context, activities.DrainInput) (drain.Result, error) {
			return drain.Result{}, w.cancelDuring("drain w3")
		}).Once()
		w.uncordons(w3, w2)
		w.releases(clusterstate.Running)
		w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Count: 2})
		kind, _ := w.ended()
		require.Equal(t, "Canceled", kind)
		require.Equal(t, []string{"drain w3"}, w.called("drain"), "the second node is not drained any more")
	})
	t.Run("wait between attempts", func(t *testing.T) {
		w := newWorld(t)
		w.claims(clusterstate.Scaling, clusterstate.Running, "", settingsOf(everyNode))
		w.machinesAre(false, w3)
		w.roomFor(w3)
		w.cordons(w3)
		w.drainSettings()
		w.drainFails(w3, 1)
		w.env.RegisterDelayedCallback(w.env.CancelWorkflow, 10*time.Second)
		w.uncordons(w3)
		w.releases(clusterstate.Running)
		w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Count: 1})
		kind, _ := w.ended()
		require.Equal(t, "Canceled", kind)
	})
	t.Run("removal", func(t *testing.T) {
		w := newWorld(t)
		w.claims(clusterstate.Scaling, clusterstate.Running, "", settingsOf(everyNode))
		w.machinesAre(false, w3)
		w.roomFor(w3)
		w.cordons(w3)
		w.drainSettings()
		w.drainsWell(w3)
		w.env.OnActivity(act.DeleteNode, mock.Anything, machine(w3)).Return(func(context.Context, activities.MachineInput) (activities.DeleteNodeResult, error) {
			w.env.CancelWorkflow()
			return activities.DeleteNodeResult{}, nil
		}).Once()
		w.env.OnActivity(act.DestroyMachine, mock.Anything, machine(w3)).Return(activities.DestroyMachineResult{}, nil).Once()
		w.releases(clusterstate.Running)
		w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Count: 1})
		require.NoError(t, w.env.GetWorkflowError())
	})
}

func TestCompensationNeverHidesTheFirstError(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Scaling, clusterstate.Running, "", settingsOf(everyNode))
	w.machinesAre(false, w3)
	w.roomFor(w3)
	w.cordons(w3)
	w.drainSettings()
	w.drainFails(w3, 3)
	w.env.OnActivity(act.Uncordon, mock.Anything, on(w3)).
		Return(activities.UncordonResult{}, temporal.NewNonRetryableApplicationError("uncordon node w3: forbidden", operation.TypeConfig, nil)).Once()
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(ScaleDown, operation.ScaleDownInput{Cluster: "prod", Count: 1})

	kind, text := w.ended()
	require.Equal(t, operation.TypeRolledBack, kind)
	require.Contains(t, text, "blocked by budget default/web")
	require.Contains(t, text, "could not uncordon w3 (uncordon node w3: forbidden)")
}
