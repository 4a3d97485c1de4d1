package workflows

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/drain"
	"ebb/internal/operation"
	"ebb/internal/policy"
	"ebb/internal/version"
)

const target = "1.37.2"

func (w *world) fit(nodes ...policy.Node) {
	w.env.OnActivity(act.Health, mock.Anything, mock.Anything).Return(activities.HealthResult{}, nil)
	w.env.OnActivity(act.Etcd, mock.Anything, mock.Anything).Return(activities.EtcdResult{}, nil)
	for _, n := range nodes {
		w.env.OnActivity(act.Preflight, mock.Anything, activities.PreflightInput{Cluster: "prod", Node: n}).Return(activities.PreflightResult{}, nil).Once()
	}
}

func scriptOn(n policy.Node, phase string, attempt int) any {
	return mock.MatchedBy(func(in activities.ScriptInput) bool {
		return in.NodeInput == on(n) && in.On.UID == n.UID && in.Phase == phase && in.Attempt == attempt && in.Target == target
	})
}

func (w *world) runs(phase string, nodes ...policy.Node) {
	for _, n := range nodes {
		w.env.OnActivity(act.RunScript, mock.Anything, scriptOn(n, phase, 1)).Return(func(context.Context, activities.ScriptInput) (activities.ScriptResult, error) {
			w.note(phase + " " + n.Name)
			return activities.ScriptResult{}, nil
		}).Once()
	}
}

// reports answers what a node looks like when its turn comes.
func (w *world) reports(nodes ...policy.Node) {
	for _, n := range nodes {
		w.env.OnActivity(act.Node, mock.Anything, on(n)).Return(activities.NodeResult{Node: n}, nil).Once()
	}
}

// completes is everything after a node's script.
func (w *world) completes(nodes ...policy.Node) {
	w.uncordons(nodes...)
	for _, n := range nodes {
		w.env.OnActivity(act.CheckVersion, mock.Anything, activities.CheckVersionInput{Cluster: "prod", Node: n, Version: target}).
			Return(activities.CheckVersionResult{}, nil).Once()
		w.becomesReady(n, 0, "lives")
		w.becomesReady(n, time.Second, "ready")
		w.env.OnActivity(act.RecordVersion, mock.Anything, activities.RecordVersionInput{NodeInput: on(n), Version: target}).
			Return(func(context.Context, activities.RecordVersionInput) (activities.RecordVersionResult, error) {
				w.note("record " + n.Name)
				return activities.RecordVersionResult{}, nil
			}).Once()
	}
}

func awaitsReady(n policy.Node, steady time.Duration) any {
	return mock.MatchedBy(func(in activities.WaitReadyInput) bool {
		return in.Node.Name == n.Name && in.Version == target && in.Steady == steady
	})
}

func (w *world) becomesReady(n policy.Node, steady time.Duration, note string) {
	w.env.OnActivity(act.WaitReady, mock.Anything, awaitsReady(n, steady)).Return(func(context.Context, activities.WaitReadyInput) (activities.WaitReadyResult, error) {
		w.note(note + " " + n.Name)
		return activities.WaitReadyResult{}, nil
	}).Once()
}

// upgrades is the whole way of nodes that go well.
func (w *world) upgrades(nodes ...policy.Node) {
	w.reports(nodes...)
	w.cordons(nodes...)
	w.drainsWell(nodes...)
	w.runs(activities.PhaseUpgrade, nodes...)
	w.completes(nodes...)
}

// noISO expects the question whether there are ISOs to detach, which there are not.
func (w *world) noISO(first policy.Node) {
	w.env.OnActivity(act.DetachISO, mock.Anything, activities.DetachISOInput{Cluster: "prod", Node: first}).
		Return(activities.DetachISOResult{}, nil).Once()
}

func (w *world) verifies(nodes ...policy.Node) {
	w.env.OnActivity(act.Survey, mock.Anything, activities.SurveyInput{Cluster: "prod"}).Return(settingsOf(nodes), nil).Once()
}

func upgrade() operation.UpgradeInput {
	return operation.UpgradeInput{Cluster: "prod", Route: version.Route{Target: version.Of("v" + target)}}
}

func TestUpgradeGoesNodeByNode(t *testing.T) {
	w := newWorld(t)
	nodes := []policy.Node{cp1, cp2, w1}
	w.claims(clusterstate.Upgrading, clusterstate.Running, target, settingsOf(nodes))
	w.fit(nodes...)
	w.runs(activities.PhaseStage, nodes...)
	w.drainSettings()
	w.upgrades(nodes...)
	w.verifies(upgraded(cp1), upgraded(cp2), upgraded(w1))
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(Upgrade, upgrade())

	var result operation.UpgradeResult
	require.NoError(t, w.env.GetWorkflowResult(&result))
	require.Equal(t, operation.UpgradeResult{Version: target, Upgraded: []string{"cp1", "cp2", "w1"}}, result)
	require.ElementsMatch(t, []string{"stage cp1", "stage cp2", "stage w1"}, w.calls[:3], "everything is staged before anything is drained")
	var want []string
	for _, n := range nodes {
		want = append(want, "cordon "+n.Name, "drain "+n.Name, "upgrade "+n.Name, "lives "+n.Name, "uncordon "+n.Name, "ready "+n.Name, "record "+n.Name)
	}
	require.Equal(t, append(want, "release Running"), w.calls[3:])
}

func TestUpgradeStopsAtTheNodeThatFailsAndPutsItsLoadBack(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Upgrading, clusterstate.Running, target, settingsOf(everyNode))
	w.fit(everyNode...)
	w.runs(activities.PhaseStage, everyNode...)
	w.drainSettings()
	w.upgrades(cp1)
	w.reports(w1)
	w.cordons(w1)
	w.drainsWell(w1)
	w.env.OnActivity(act.RunScript, mock.Anything, scriptOn(w1, activities.PhaseUpgrade, 1)).
		Return(activities.ScriptResult{}, fails(operation.TypeScript, "script (upgrade) on node w1: exit status 1: no space left on device")).Once()
	w.uncordons(w1)
	w.noISO(cp1)
	w.releases(clusterstate.Alert)

	w.env.ExecuteWorkflow(Upgrade, upgrade())

	kind, text := w.ended()
	require.Equal(t, operation.TypeFailed, kind)
	require.Contains(t, text, "node w1 (machine m-w1), step script (uncordoned w1): ")
	require.Contains(t, text, "no space left on device")
	require.Contains(t, text, "1 of 4 nodes are at 1.37.2")
	require.Equal(t, []string{"cordon cp1", "cordon w1"}, w.called("cordon"), "the rest is not started")
}

func TestUpgradeRetrySkipsWhatIsDone(t *testing.T) {
	w := newWorld(t)
	nodes := []policy.Node{upgraded(cp1), upgraded(w1), w2}
	w.claims(clusterstate.Upgrading, clusterstate.Alert, target, settingsOf(nodes))
	w.fit(w2)
	w.runs(activities.PhaseStage, w2)
	w.drainSettings()
	w.reports(upgraded(cp1), upgraded(w1))
	w.upgrades(w2)
	w.verifies(upgraded(cp1), upgraded(w1), upgraded(w2))
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(Upgrade, upgrade())

	var result operation.UpgradeResult
	require.NoError(t, w.env.GetWorkflowResult(&result))
	require.Equal(t, operation.UpgradeResult{Version: target, Upgraded: []string{"w2"}, Skipped: []string{"cp1", "w1"}}, result)
	require.Equal(t, []string{"upgrade w2"}, w.called("upgrade"))
}

func TestUpgradeGoesWiderButLetsRunningNodesFinish(t *testing.T) {
	w := newWorld(t)
	survey := settingsOf(everyNode)
	survey.Upgrade.MaxUnavailable = 2
	w.claims(clusterstate.Upgrading, clusterstate.Running, target, survey)
	w.fit(everyNode...)
	w.runs(activities.PhaseStage, everyNode...)
	w.drainSettings()
	w.upgrades(cp1)
	w.reports(w1, w2)
	w.cordons(w1, w2)
	w.drainsWell(w1, w2)
	w.env.OnActivity(act.RunScript, mock.Anything, scriptOn(w1, activities.PhaseUpgrade, 1)).
		Return(activities.ScriptResult{}, fails(operation.TypeScript, "exit status 1")).Once()
	w.env.OnActivity(act.RunScript, mock.Anything, scriptOn(w2, activities.PhaseUpgrade, 1)).After(5*time.Minute).
		Return(activities.ScriptResult{}, nil).Once()
	w.completes(w2)
	w.uncordons(w1)
	w.noISO(cp1)
	w.releases(clusterstate.Alert)

	w.env.ExecuteWorkflow(Upgrade, upgrade())

	kind, text := w.ended()
	require.Equal(t, operation.TypeFailed, kind)
	require.Contains(t, text, "node w1")
	require.Contains(t, text, "2 of 4 nodes")
	require.Equal(t, []string{"record cp1", "record w2"}, w.called("record"))
	require.NotContains(t, w.called("cordon"), "cordon w3")
}

func TestPreflightReportsAllFaultsAndTouchesNothing(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Upgrading, clusterstate.Running, target, settingsOf([]policy.Node{cp1, w1, w2}))
	w.env.OnActivity(act.Health, mock.Anything, mock.Anything).Return(activities.HealthResult{Faults: []string{"control plane cp2 is cordoned"}}, nil).Once()
	w.env.OnActivity(act.Etcd, mock.Anything, activities.EtcdInput{Cluster: "prod", Except: "cp1"}).
		Return(activities.EtcdResult{Faults: []string{"control plane cp2 has no etcd member"}}, nil).Once()
	w.env.OnActivity(act.Preflight, mock.Anything, activities.PreflightInput{Cluster: "prod", Node: cp1}).Return(activities.PreflightResult{}, nil).Once()
	w.env.OnActivity(act.Preflight, mock.Anything, activities.PreflightInput{Cluster: "prod", Node: w1}).
		Return(activities.PreflightResult{Faults: []string{"node w1: the address leads to another machine"}}, nil).Once()
	w.env.OnActivity(act.Preflight, mock.Anything, activities.PreflightInput{Cluster: "prod", Node: w2}).
		Return(activities.PreflightResult{}, fails(operation.TypeNodeAccess, "node w2: no route to host")).Once()
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(Upgrade, upgrade())

	kind, text := w.ended()
	require.Equal(t, operation.TypeRefused, kind)
	for _, fault := range []string{"cp2 is cordoned", "cp2 has no etcd member", "w1: the address leads to another machine", "w2: no route to host", "nothing was changed"} {
		require.Contains(t, text, fault)
	}
}

func TestFaultsOfNodesAreInTheOrderThatPeopleCount(t *testing.T) {
	w := newWorld(t)
	w10 := w3
	w10.Name = "w10"
	w.claims(clusterstate.Upgrading, clusterstate.Running, target, settingsOf([]policy.Node{cp1, w10, w2}))
	w.env.OnActivity(act.Health, mock.Anything, mock.Anything).Return(activities.HealthResult{}, nil).Once()
	w.env.OnActivity(act.Etcd, mock.Anything, mock.Anything).Return(activities.EtcdResult{}, nil).Once()
	w.env.OnActivity(act.Preflight, mock.Anything, mock.Anything).Return(func(_ context.Context, in activities.PreflightInput) (activities.PreflightResult, error) {
		return activities.PreflightResult{Faults: []string{in.Node.Name + " has no sudo", in.Node.Name + " has no kubeadm"}}, nil
	}).Times(3)
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(Upgrade, upgrade())

	_, text := w.ended()
	require.Contains(t, text, "cp1 has no sudo; cp1 has no kubeadm; w2 has no sudo; w2 has no kubeadm; w10 has no sudo; w10 has no kubeadm")
}

func TestStageThatFailsGoesBack(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Upgrading, clusterstate.Running, target, settingsOf([]policy.Node{cp1}))
	w.fit(cp1)
	w.env.OnActivity(act.RunScript, mock.Anything, scriptOn(cp1, activities.PhaseStage, 1)).
		Return(activities.ScriptResult{}, fails(operation.TypeScript, "E: Version '1.37.2-*' for 'kubeadm' was not found")).Once()
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(Upgrade, upgrade())

	kind, text := w.ended()
	require.Equal(t, operation.TypeRolledBack, kind)
	require.Contains(t, text, "no node was touched; the cluster is in state Running; cause: E: Version")
}

func TestScriptThatAsksForARetryIsRunAgainAsAnotherRun(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Upgrading, clusterstate.Running, target, settingsOf([]policy.Node{cp1}))
	w.fit(cp1)
	w.runs(activities.PhaseStage, cp1)
	w.drainSettings()
	w.reports(cp1)
	w.cordons(cp1)
	w.drainsWell(cp1)
	w.env.OnActivity(act.RunScript, mock.Anything, scriptOn(cp1, activities.PhaseUpgrade, 1)).Return(activities.ScriptResult{Again: true}, nil).Once()
	w.env.OnActivity(act.RunScript, mock.Anything, scriptOn(cp1, activities.PhaseUpgrade, 2)).Return(activities.ScriptResult{}, nil).Once()
	w.completes(cp1)
	w.verifies(upgraded(cp1))
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(Upgrade, upgrade())

	require.NoError(t, w.env.GetWorkflowError())
}

func TestNodeThatJoinedMeanwhileIsNotForgotten(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Upgrading, clusterstate.Running, target, settingsOf([]policy.Node{cp1}))
	w.fit(cp1)
	w.runs(activities.PhaseStage, cp1)
	w.drainSettings()
	w.upgrades(cp1)
	w.verifies(upgraded(cp1), w3)
	w.noISO(cp1)
	w.releases(clusterstate.Alert)

	w.env.ExecuteWorkflow(Upgrade, upgrade())

	kind, text := w.ended()
	require.Equal(t, operation.TypeFailed, kind)
	require.Contains(t, text, "node w3 is at 1.36.3: it joined during the upgrade")
}

func TestSickControlPlaneStopsTheNextOne(t *testing.T) {
	w := newWorld(t)
	nodes := []policy.Node{cp1, cp2}
	w.claims(clusterstate.Upgrading, clusterstate.Running, target, settingsOf(nodes))
	w.env.OnActivity(act.Health, mock.Anything, activities.HealthInput{Cluster: "prod", Except: "cp1", Operation: "op-1"}).Return(activities.HealthResult{}, nil)
	w.env.OnActivity(act.Etcd, mock.Anything, mock.Anything).Return(activities.EtcdResult{}, nil)
	w.env.OnActivity(act.Health, mock.Anything, activities.HealthInput{Cluster: "prod", Except: "cp2", Operation: "op-1"}).
		Return(activities.HealthResult{Faults: []string{"control plane cp1 is not Ready"}}, nil).Once()
	for _, n := range nodes {
		w.env.OnActivity(act.Preflight, mock.Anything, activities.PreflightInput{Cluster: "prod", Node: n}).Return(activities.PreflightResult{}, nil).Once()
	}
	w.runs(activities.PhaseStage, nodes...)
	w.drainSettings()
	w.upgrades(cp1)
	w.reports(cp2)
	w.noISO(cp1)
	w.releases(clusterstate.Alert)

	w.env.ExecuteWorkflow(Upgrade, upgrade())

	_, text := w.ended()
	require.Contains(t, text, "node cp2 (machine m-cp2), step check: not started: control plane cp1 is not Ready")
}

func TestUpgradeCancelledAtEachStep(t *testing.T) {
	nodes := []policy.Node{cp1, w1}
	prepared := func(t *testing.T) *world {
		w := newWorld(t)
		w.claims(clusterstate.Upgrading, clusterstate.Running, target, settingsOf(nodes))
		w.fit(nodes...)
		w.runs(activities.PhaseStage, nodes...)
		return w
	}
	t.Run("preflight", func(t *testing.T) {
		w := newWorld(t)
		w.claims(clusterstate.Upgrading, clusterstate.Running, target, settingsOf([]policy.Node{cp1}))
		w.env.OnActivity(act.Health, mock.Anything, mock.Anything).Return(activities.HealthResult{}, nil).Once()
		w.env.OnActivity(act.Etcd, mock.Anything, mock.Anything).Return(activities.EtcdResult{}, nil).Once()
		w.env.OnActivity(act.Preflight, mock.Anything, mock.Anything).Return(func(context.Context, activities.PreflightInput) (activities.PreflightResult, error) {
			return activities.PreflightResult{}, w.cancelDuring("preflight")
		}).Once()
		w.releases(clusterstate.Running)
		w.env.ExecuteWorkflow(Upgrade, upgrade())
		kind, text := w.ended()
		require.Equal(t, "Canceled", kind)
		require.Contains(t, text, "nothing was changed")
	})
	t.Run("drain", func(t *testing.T) {
		w := prepared(t)
		w.drainSettings()
		w.reports(cp1)
		w.cordons(cp1)
		w.env.OnActivity(act.Drain, mock.Anything, drains(cp1)).Return(func(context.Context, activities.DrainInput) (drain.Result, error) {
			return drain.Result{}, w.cancelDuring("drain cp1")
		}).Once()
		w.uncordons(cp1)
		w.noISO(cp1)
		w.releases(clusterstate.Alert)
		w.env.ExecuteWorkflow(Upgrade, upgrade())
		kind, text := w.ended()
		require.Equal(t, "Canceled", kind)
		require.Contains(t, text, "0 of 2 nodes are at 1.37.2")
		require.Equal(t, []string{"cordon cp1"}, w.called("cordon"))
	})
	t.Run("script", func(t *testing.T) {
		w := prepared(t)
		w.drainSettings()
		w.reports(cp1)
		w.cordons(cp1)
		w.drainsWell(cp1)
		w.env.OnActivity(act.RunScript, mock.Anything, scriptOn(cp1, activities.PhaseUpgrade, 1)).After(time.Minute).Return(activities.ScriptResult{}, nil).Once()
		w.env.RegisterDelayedCallback(w.env.CancelWorkflow, 10*time.Second)
		w.completes(cp1)
		w.noISO(cp1)
		w.releases(clusterstate.Alert)
		w.env.ExecuteWorkflow(Upgrade, upgrade())
		kind, text := w.ended()
		require.Equal(t, "Canceled", kind)
		require.Contains(t, text, "1 of 2 nodes are at 1.37.2", "the node whose script ran is finished")
		require.Equal(t, []string{"cordon cp1"}, w.called("cordon"), "the next one is not started")
	})
}

func TestUpgradeStatusNamesEveryNode(t *testing.T) {
	w := newWorld(t)
	w.claims(clusterstate.Upgrading, clusterstate.Running, target, settingsOf([]policy.Node{cp1}))
	w.fit(cp1)
	w.runs(activities.PhaseStage, cp1)
	w.drainSettings()
	w.upgrades(cp1)
	w.verifies(upgraded(cp1))
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(Upgrade, upgrade())

	value, err := w.env.QueryWorkflow(operation.QueryStatus)
	require.NoError(t, err)
	var status operation.Status
	require.NoError(t, value.Get(&status))
	require.Equal(t, operation.Status{
		Operation: op, Kind: operation.KindUpgrade, Cluster: "prod", Target: target, Step: "every node is at 1.37.2",
		Nodes:   []operation.NodeStatus{{Node: "cp1", Role: policy.FirstControlPlane, Phase: operation.PhaseDone}},
		Started: status.Started, Deadline: status.Deadline,
	}, status)
	require.Equal(t, 70*time.Minute, status.Deadline.Sub(status.Started).Truncate(time.Minute))
	require.True(t, strings.Contains(status.Markdown(), "| cp1 | first-control-plane | done |"))
}

// inHops is an upgrade to 1.38.1 that stops at 1.37.2 on its way.
func inHops() operation.UpgradeInput {
	return operation.UpgradeInput{Cluster: "prod", Route: version.Route{Hops: []version.Version{target}, Target: "1.38.1"}}
}

func (w *world) claimsHops(next version.Version, from clusterstate.State, survey activities.Survey) {
	w.env.OnActivity(act.Claim, mock.Anything, activities.ClaimInput{
		Cluster: "prod", Operation: op, State: clusterstate.Upgrading, Route: version.Route{Hops: []version.Version{target}, Target: "1.38.1"},
		Machines: &activities.MachineStates{},
	}).Return(activities.ClaimResult{From: from, Next: next}, nil).Once()
	w.env.OnActivity(act.Survey, mock.Anything, activities.SurveyInput{Cluster: "prod"}).Return(survey, nil).Once()
}

func (w *world) advances() {
	w.env.OnActivity(act.Advance, mock.Anything, activities.AdvanceInput{Cluster: "prod", Operation: op, Version: target, Target: "1.38.1"}).
		Return(func(context.Context, activities.AdvanceInput) (activities.AdvanceResult, error) {
			w.note("advance")
			return activities.AdvanceResult{}, nil
		}).Once()
}

func TestUpgradeInHops(t *testing.T) {
	w := newWorld(t)
	w.claimsHops(target, clusterstate.Running, settingsOf([]policy.Node{cp1}))
	w.fit(cp1, upgraded(cp1))
	w.runs(activities.PhaseStage, cp1)
	w.drainSettings()
	w.upgrades(cp1)
	w.verifies(upgraded(cp1))
	w.advances()
	// The second hop: another version, and another run on the node.
	w.verifies(upgraded(cp1))
	second := func(phase string) {
		w.env.OnActivity(act.RunScript, mock.Anything, mock.MatchedBy(func(in activities.ScriptInput) bool {
			return in.Phase == phase && in.Target == "1.38.1" && in.Hop == 1 && in.On.Version == "1.37.2"
		})).Return(activities.ScriptResult{}, nil).Once()
	}
	second(activities.PhaseStage)
	w.reports(upgraded(cp1))
	w.cordons(cp1)
	w.drainsWell(cp1)
	second(activities.PhaseUpgrade)
	w.uncordons(cp1)
	w.env.OnActivity(act.CheckVersion, mock.Anything, activities.CheckVersionInput{Cluster: "prod", Node: upgraded(cp1), Version: "1.38.1"}).
		Return(activities.CheckVersionResult{}, nil).Once()
	w.env.OnActivity(act.WaitReady, mock.Anything, mock.MatchedBy(func(in activities.WaitReadyInput) bool { return in.Version == "1.38.1" })).
		Return(activities.WaitReadyResult{}, nil).Twice()
	w.env.OnActivity(act.RecordVersion, mock.Anything, activities.RecordVersionInput{NodeInput: on(cp1), Version: "1.38.1"}).
		Return(activities.RecordVersionResult{}, nil).Once()
	there := upgraded(cp1)
	there.Version = "1.38.1"
	w.verifies(there)
	w.env.OnActivity(act.Release, mock.Anything, activities.ReleaseInput{Cluster: "prod", Operation: op, State: clusterstate.Running, Version: "1.38.1"}).
		Return(activities.ReleaseResult{Held: true}, nil).Once()

	w.env.ExecuteWorkflow(Upgrade, inHops())

	var result operation.UpgradeResult
	require.NoError(t, w.env.GetWorkflowResult(&result))
	require.Equal(t, operation.UpgradeResult{Version: "1.38.1", Hops: []version.Version{target}, Upgraded: []string{"cp1"}}, result)
}

func TestUpgradeInHopsThatStopsBetweenThemLeavesAWholeCluster(t *testing.T) {
	w := newWorld(t)
	w.claimsHops(target, clusterstate.Alert, settingsOf([]policy.Node{cp1}))
	w.fit(cp1)
	w.runs(activities.PhaseStage, cp1)
	w.drainSettings()
	w.upgrades(cp1)
	w.verifies(upgraded(cp1))
	w.advances()
	w.verifies(upgraded(cp1))
	w.env.OnActivity(act.Preflight, mock.Anything, activities.PreflightInput{Cluster: "prod", Node: upgraded(cp1)}).
		Return(activities.PreflightResult{Faults: []string{"node cp1: 5 KiB free on /"}}, nil).Once()
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(Upgrade, inHops())

	kind, text := w.ended()
	require.Equal(t, operation.TypeFailed, kind)
	require.Contains(t, text, "every node is at 1.37.2, the step to 1.38.1 was not begun; the cluster is in state Running")
	require.Contains(t, text, "5 KiB free")
}

func TestUpgradeRetryGoesOnAtTheHopWhereItStopped(t *testing.T) {
	w := newWorld(t)
	w.claimsHops("1.38.1", clusterstate.Alert, settingsOf([]policy.Node{upgraded(cp1)}))
	w.fit()
	w.env.OnActivity(act.Preflight, mock.Anything, mock.Anything).Return(activities.PreflightResult{Faults: []string{"enough"}}, nil).Once()
	w.releases(clusterstate.Alert)
	w.env.ExecuteWorkflow(Upgrade, inHops())
	kind, text := w.ended()
	require.Equal(t, operation.TypeRefused, kind)
	require.Contains(t, text, "nothing was changed; the cluster is in state Alert")
}

func TestFailedUpgradeDetachesTheISOsBeforeItIsInAlert(t *testing.T) {
	for _, c := range []struct {
		name    string
		problem error
		text    string
	}{
		{"of every machine", nil, "it goes on where it stopped; the cluster is in state Alert"},
		{"and what goes wrong there hides nothing", fails(operation.TypeConfig, "the keys are not accepted"), "the ISO is still attached to the machine of w1: the keys are not accepted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			nodes := []policy.Node{cp1, w1}
			w.claims(clusterstate.Upgrading, clusterstate.Running, target, settingsOf(nodes))
			w.fit(nodes...)
			w.runs(activities.PhaseStage, nodes...)
			w.reports(cp1)
			w.env.OnActivity(act.Cordon, mock.Anything, on(cp1)).Return(activities.CordonResult{}, fails(operation.TypeConfig, "nodes is forbidden")).Once()
			w.env.OnActivity(act.Uncordon, mock.Anything, on(cp1)).Return(activities.UncordonResult{}, nil).Once()
			for n, err := range map[string]error{"cp1": nil, "w1": c.problem} {
				w.env.OnActivity(act.DetachISO, mock.Anything, mock.MatchedBy(func(in activities.DetachISOInput) bool { return in.Node.Name == n })).
					Return(func(context.Context, activities.DetachISOInput) (activities.DetachISOResult, error) {
						w.note("detach " + n)
						return activities.DetachISOResult{Detached: err == nil}, err
					}).Once()
			}
			w.releases(clusterstate.Alert)
			w.env.ExecuteWorkflow(Upgrade, upgrade())
			kind, text := w.ended()
			require.Equal(t, operation.TypeFailed, kind)
			require.Contains(t, text, "nodes is forbidden")
			require.Contains(t, text, c.text)
			require.Equal(t, []string{"detach cp1", "detach w1", "release Alert"}, w.called("detach", "release"))
		})
	}
}

func TestWorkersThatAreNotReadyAreUpgradedFirst(t *testing.T) {
	w := newWorld(t)
	down := w2
	down.Ready = false
	nodes := []policy.Node{cp1, w1, down}
	w.claims(clusterstate.Upgrading, clusterstate.Running, target, settingsOf(nodes))
	w.fit(nodes...)
	w.runs(activities.PhaseStage, nodes...)
	w.drainSettings()
	w.upgrades(cp1, down, w1)
	w.verifies(upgraded(cp1), upgraded(w1), upgraded(w2))
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(Upgrade, upgrade())

	require.NoError(t, w.env.GetWorkflowError())
	require.Equal(t, []string{"upgrade cp1", "upgrade w2", "upgrade w1"}, w.called("upgrade"))
}
