package operations

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb/internal/clusterstate"
	"ebb/internal/config"
	"ebb/internal/natural"
	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/internal/testbed"
	"ebb/internal/version"
)

func TestScaleDownThatCannotWorkIsRolledBack(t *testing.T) {
	forbid(t)
	require.NoError(t, shared.Configure(func(c *config.Cluster) {
		c.Drain.Timeout, c.Scale.Attempts = config.Duration(2*time.Second), 2
	}))
	t.Cleanup(func() { require.NoError(t, shared.Configure(nil)) })

	leaving := webHosts(t)[:2]
	id := begin(t, ops.Request{Kind: operation.KindScaleDown, Nodes: leaving})
	until(t, id, blocked)
	end := finish(t, id)

	require.Equal(t, ops.RolledBack, end.State, text(end))
	for _, part := range []string{"node " + leaving[0], "default/web-", "blocked by budget default/web", "uncordoned " + strings.Join(leaving, ", "), "nothing was removed", "the cluster is in state Running"} {
		require.Contains(t, end.Message, part)
	}
	require.Len(t, nodes(t), 6)
	untouched(t)
}

func TestOperatorsCordonIsKept(t *testing.T) {
	forbid(t)
	leaving := webHosts(t)[:2]
	operatorCordons(t, leaving[0], true)
	t.Cleanup(func() { operatorCordons(t, leaving[0], false); untouched(t) })
	require.NoError(t, shared.Configure(func(c *config.Cluster) {
		c.Drain.Timeout, c.Scale.Attempts = config.Duration(2*time.Second), 1
	}))
	t.Cleanup(func() { require.NoError(t, shared.Configure(nil)) })

	end := finish(t, begin(t, ops.Request{Kind: operation.KindScaleDown, Nodes: leaving}))

	require.Equal(t, ops.RolledBack, end.State, text(end))
	require.Contains(t, end.Message, "uncordoned "+leaving[1])
	verify(t, testbed.OnlyCordoned(leaving[0]), testbed.InState(clusterstate.Running))
	node, err := shared.Sandbox.Client().CoreV1().Nodes().Get(t.Context(), leaving[0], meta.GetOptions{})
	require.NoError(t, err)
	require.NotContains(t, node.Annotations, "ebb/cordoned-by")
}

func TestSecondOperationIsRefused(t *testing.T) {
	allow := forbid(t)
	node := webHosts(t)[0]
	first := begin(t, ops.Request{Kind: operation.KindDrain, Nodes: []string{node}})
	until(t, first, blocked)

	second := begin(t, ops.Request{Kind: operation.KindScaleDown, Count: 1})
	end := finish(t, second)
	require.Equal(t, ops.Refused, end.State, text(end))
	require.Contains(t, end.Message, first)
	require.Contains(t, end.Message, "state Draining")

	allow()
	require.Equal(t, ops.Done, finish(t, first).State)
	verify(t, testbed.OnlyCordoned(node), testbed.InState(clusterstate.Running))
	operatorCordons(t, node, false)
	untouched(t)
}

func TestSameOperationIDRunsOnce(t *testing.T) {
	request := ops.Request{ID: "drain-once", Kind: operation.KindDrain, Nodes: []string{"w2"}}
	begin(t, request)
	request.Cluster = testbed.ClusterName
	for range 3 {
		_, started, err := shared.Ops.Start(t.Context(), request)
		require.NoError(t, err)
		require.False(t, started, "while it runs")
	}
	require.Equal(t, ops.Done, finish(t, request.ID).State)
	again, started, err := shared.Ops.Start(t.Context(), request)
	require.NoError(t, err)
	require.False(t, started, "after it has ended")
	require.Equal(t, ops.Done, again.State)

	request.Nodes = []string{"w3"}
	_, _, err = shared.Ops.Start(t.Context(), request)
	var conflict *ops.ConflictError
	require.ErrorAs(t, err, &conflict)
	operatorCordons(t, "w2", false)
	untouched(t)
}

func TestCancelDuringADrain(t *testing.T) {
	forbid(t)
	leaving := webHosts(t)[:2]
	id := begin(t, ops.Request{Kind: operation.KindScaleDown, Nodes: leaving})
	until(t, id, blocked)

	require.NoError(t, shared.Ops.Cancel(t.Context(), id))
	end := finish(t, id)

	require.Equal(t, ops.Cancelled, end.State, text(end))
	require.True(t, end.RolledBack)
	require.Contains(t, end.Message, "nothing was removed, uncordoned "+strings.Join(leaving, ", "))
	untouched(t)
}

// A workflow that was terminated takes nothing back; whoever comes next does.
func TestDeadHolderIsTakenOver(t *testing.T) {
	allow := forbid(t)
	node := webHosts(t)[0]
	dead := begin(t, ops.Request{Kind: operation.KindDrain, Nodes: []string{node}})
	until(t, dead, blocked)
	require.NoError(t, shared.Client.TerminateWorkflow(t.Context(), dead, "", "by the test"))
	verify(t, testbed.OnlyCordoned(node))
	allow()

	other := "w1"
	if node == other {
		other = "w2"
	}
	end := finish(t, begin(t, ops.Request{Kind: operation.KindDrain, Nodes: []string{other}}))

	require.Equal(t, ops.Done, end.State, text(end))
	verify(t, testbed.OnlyCordoned(other), testbed.InState(clusterstate.Running))
	operatorCordons(t, other, false)
	untouched(t)
}

func TestChangedDrainTimeoutAppliesToTheNextAttempt(t *testing.T) {
	forbid(t)
	set := func(timeout time.Duration) {
		require.NoError(t, shared.Configure(func(c *config.Cluster) {
			c.Drain.Timeout, c.Scale.Attempts = config.Duration(timeout), 2
		}))
	}
	set(2 * time.Second)
	t.Cleanup(func() { require.NoError(t, shared.Configure(nil)) })
	id := begin(t, ops.Request{Kind: operation.KindDrain, Nodes: webHosts(t)[:1]})
	until(t, id, blocked)
	set(4 * time.Second)

	end := finish(t, id)

	require.Equal(t, ops.RolledBack, end.State, text(end))
	require.Contains(t, end.Message, "not empty after 4s", "no restart was needed")
	untouched(t)
}

func TestOperationSurvivesItsEngine(t *testing.T) {
	allow := forbid(t)
	require.NoError(t, shared.Configure(func(c *config.Cluster) { c.Drain.Timeout = config.Duration(time.Minute) }))
	t.Cleanup(func() { require.NoError(t, shared.Configure(nil)) })
	node := webHosts(t)[0]
	id := begin(t, ops.Request{Kind: operation.KindDrain, Nodes: []string{node}})
	until(t, id, blocked)

	shared.StopEngine()
	require.NoError(t, shared.StartEngine(t.Context()))
	allow()

	require.Equal(t, ops.Done, finish(t, id).State)
	verify(t, testbed.OnlyCordoned(node))
	operatorCordons(t, node, false)
	untouched(t)
}

func TestWrongHostKeyFailsAtOnce(t *testing.T) {
	cluster := shared.Sandbox.Cluster(testbed.ClusterName)
	known, err := os.ReadFile(cluster.SSH.KnownHosts)
	require.NoError(t, err)
	require.NoError(t, shared.Sandbox.Machine("w3").RotateHostKey())
	t.Cleanup(func() {
		require.NoError(t, shared.Sandbox.TrustHostKeys())
		untouched(t)
	})

	end := finish(t, begin(t, ops.Request{Kind: operation.KindUpgrade, Route: version.Route{Target: "1.37.2"}}))

	require.Equal(t, ops.Refused, end.State, text(end))
	require.Contains(t, end.Message, "w3")
	require.Contains(t, end.Message, "host key")
	for _, event := range events(t, end.ID) {
		if started := event.GetActivityTaskStartedEventAttributes(); started != nil {
			require.EqualValues(t, 1, started.GetAttempt(), "a wrong key is not tried again: %s", started)
		}
	}
	for _, n := range nodes(t) {
		for _, command := range shared.Sandbox.Machine(n.Name).Commands() {
			require.Equal(t, "kubeadm version -o short", command, "only the check ran on %s", n.Name)
		}
	}
	now, err := os.ReadFile(cluster.SSH.KnownHosts)
	require.NoError(t, err)
	require.Equal(t, string(known), string(now), "the new key is not trusted")
}

func TestWrongMachineStopsTheUpgrade(t *testing.T) {
	machine := shared.Sandbox.Machine("w2")
	require.NoError(t, machine.SetMachineID("0123456789abcdef0123456789abcdef"))
	t.Cleanup(func() { require.NoError(t, machine.SetMachineID(machine.MachineID())); untouched(t) })
	before := len(machine.Commands())

	end := finish(t, begin(t, ops.Request{Kind: operation.KindUpgrade, Route: version.Route{Target: "1.37.2"}}))

	require.Equal(t, ops.Refused, end.State, text(end))
	require.Contains(t, end.Message, "node w2: the address leads to another machine")
	for _, command := range machine.Commands()[before:] {
		require.NotContains(t, command, "upgrade")
		require.NotContains(t, command, "apt-get")
	}
}

// Copies of one disk image: no look at a machine tells which of them it is.
func TestTwoNodesWithOneMachineIDAreRefused(t *testing.T) {
	w1, w2 := shared.Sandbox.Machine("w1"), shared.Sandbox.Machine("w2")
	require.NoError(t, w2.ShareMachineID(t.Context(), w1))
	t.Cleanup(func() { require.NoError(t, w2.ShareMachineID(context.Background(), nil)); untouched(t) })
	before := len(w1.Commands()) + len(w2.Commands())

	for _, r := range []ops.Request{
		{Kind: operation.KindUpgrade, Route: version.Route{Target: "1.37.2"}}, {Kind: operation.KindScaleDown, Nodes: []string{"w2"}},
	} {
		end := finish(t, begin(t, r))
		require.Equal(t, ops.Refused, end.State, text(end))
		require.Contains(t, end.Message, "nodes w1 and w2 have the same machine ID "+w1.MachineID())
	}
	require.Len(t, append(w1.Commands(), w2.Commands()...), before, "nothing was run")
	require.False(t, w2.Destroyed())
}

func TestUpgradeWithoutTheNodeThatRunsApplyIsRefused(t *testing.T) {
	labelManual := func(value any) {
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]any{clusterstate.LabelManualUpgrade: value}}})
		require.NoError(t, err)
		_, err = shared.Sandbox.Client().CoreV1().Nodes().Patch(context.Background(), "cp1", types.StrategicMergePatchType, body, meta.PatchOptions{})
		require.NoError(t, err)
	}
	labelManual("true")
	t.Cleanup(func() { labelManual(nil); untouched(t) })

	end := finish(t, begin(t, ops.Request{Kind: operation.KindUpgrade, Route: version.Route{Target: "1.37.2"}}))

	require.Equal(t, ops.Refused, end.State, text(end))
	require.Contains(t, end.Message, "cp1 is the control plane that runs kubeadm upgrade apply")
	for _, name := range []string{"w1", "w2"} {
		require.NotContains(t, strings.Join(shared.Sandbox.Machine(name).Commands(), "\n"), "apt-get")
	}
}

func TestFaultsOfAllNodesComeInOneReport(t *testing.T) {
	w1, w2 := shared.Sandbox.Machine("w1"), shared.Sandbox.Machine("w2")
	require.NoError(t, w1.SetDiskFull(true))
	require.NoError(t, w2.SetSudoPassword(true))
	t.Cleanup(func() {
		require.NoError(t, w1.SetDiskFull(false))
		require.NoError(t, w2.SetSudoPassword(false))
		untouched(t)
	})

	end := finish(t, begin(t, ops.Request{Kind: operation.KindUpgrade, Route: version.Route{Target: "1.37.2"}}))

	require.Equal(t, ops.Refused, end.State, text(end))
	require.Contains(t, end.Message, "node w1")
	require.Contains(t, end.Message, "free on /")
	require.Contains(t, end.Message, "node w2: commands cannot be run as root")
}

// What apt-get says goes into the one message that people read, and nothing is drained.
func TestPackagesThatCannotBeFetchedStopTheUpgradeBeforeAnyDrain(t *testing.T) {
	w1, w2 := shared.Sandbox.Machine("w1"), shared.Sandbox.Machine("w2")
	t.Cleanup(func() {
		require.NoError(t, w1.SetKeyExpired(false))
		require.NoError(t, w2.SetHeldBack(false))
		untouched(t)
	})
	// In this order: lists that an earlier staging fetched make an expired key a warning.
	for _, fault := range []struct {
		set   func(bool) error
		words string
	}{
		{w1.SetKeyExpired, "EXPKEYSIG 234654DA9A296436 isv:kubernetes OBS Project"},
		{w2.SetHeldBack, "kubelet : Depends: kubernetes-cni (>= 1.6.0) but 1.2.0-2.1 is to be installed"},
	} {
		require.NoError(t, fault.set(true))
		end := finish(t, begin(t, ops.Request{Kind: operation.KindUpgrade, Route: version.Route{Target: "1.37.2"}}))
		require.NoError(t, fault.set(false))
		require.Equal(t, ops.RolledBack, end.State, text(end))
		require.Contains(t, end.Message, fault.words)
		verify(t, testbed.InState(clusterstate.Running), testbed.OnlyCordoned())
		for _, node := range nodes(t) {
			require.NotContains(t, strings.Join(shared.Sandbox.Machine(node.Name).Commands(), "\n"), "kubeadm upgrade")
		}
	}
}

// The control plane of the tests that follow moves up: their order matters.

func TestUpgradeSurvivesItsWorker(t *testing.T) {
	operatorCordons(t, "w5", true)
	allow := forbid(t)
	require.NoError(t, shared.Configure(func(c *config.Cluster) {
		c.Drain.Timeout = config.Duration(time.Minute)
		c.Upgrade.KubeadmFlags = []string{"--allow-release-candidate-upgrades", "--ignore-preflight-errors=SystemVerification"}
		c.Upgrade.KubeadmNodeFlags = []string{"--skip-phases=addon"}
	}))
	t.Cleanup(func() { require.NoError(t, shared.Configure(nil)) })

	id := begin(t, ops.Request{Kind: operation.KindUpgrade, Route: version.Route{Target: "1.37.2"}})
	until(t, id, idle)
	require.NoError(t, shared.KillWorkers())
	_, err := shared.Worker(t.Context())
	require.NoError(t, err)
	allow()

	// And once more, in the middle of a script.
	require.NoError(t, shared.Sandbox.Machine("w5").SlowScript(4*time.Second))
	t.Cleanup(func() { require.NoError(t, shared.Sandbox.Machine("w5").HealScript()) })
	until(t, id, func(o ops.Operation) bool {
		return phase(o, "w5") == operation.PhaseUpgrading && o.Live["w5"].Output != ""
	})
	require.NoError(t, shared.KillWorkers())
	_, err = shared.Worker(t.Context())
	require.NoError(t, err)

	end := finish(t, id)
	require.Equal(t, ops.Done, end.State, text(end))
	verify(t, testbed.AllAt("1.37.2"), testbed.OnlyCordoned("w5"), testbed.InState(clusterstate.Running), testbed.TargetIs(""),
		testbed.Ran("cp1", "kubeadm upgrade apply v1.37.2 -y --allow-release-candidate-upgrades --ignore-preflight-errors=SystemVerification", 1),
		testbed.Ran("cp1", "kubeadm upgrade node", 0))
	for _, worker := range []string{"w1", "w2", "w3", "w4", "w5"} {
		verify(t, testbed.Ran(worker, "kubeadm upgrade node --ignore-preflight-errors=SystemVerification --skip-phases=addon", 1), testbed.Ran(worker, "kubeadm upgrade apply", 0))
	}
	operatorCordons(t, "w5", false)
	untouched(t)
}

func TestFailedUpgradeIsResumed(t *testing.T) {
	w2 := shared.Sandbox.Machine("w2")
	require.NoError(t, w2.FailScript(1))

	end := finish(t, begin(t, ops.Request{Kind: operation.KindUpgrade, Route: version.Route{Target: "1.37.3"}}))

	require.Equal(t, ops.Failed, end.State, text(end))
	for _, part := range []string{"node w2", w2.MachineID(), "step script", "exit status", "uncordoned w2", "2 of 6 nodes are at 1.37.3", "state Alert"} {
		require.Contains(t, end.Message, part)
	}
	verify(t, testbed.InState(clusterstate.Alert), testbed.TargetIs("1.37.3"), testbed.OnlyCordoned(),
		testbed.NodeAt("cp1", "1.37.3"), testbed.NodeAt("w1", "1.37.3"), testbed.NodeAt("w3", "1.37.2"))

	other := finish(t, begin(t, ops.Request{Kind: operation.KindUpgrade, Route: version.Route{Target: "1.38.1"}}))
	require.Equal(t, ops.Refused, other.State, text(other))
	require.Contains(t, other.Message, "from an upgrade to 1.37.3")

	require.NoError(t, w2.HealScript())
	again := finish(t, begin(t, ops.Request{Kind: operation.KindUpgrade, Route: version.Route{Target: version.Of("v1.37.3")}}))

	require.Equal(t, ops.Done, again.State, text(again))
	require.JSONEq(t, `{"version":"1.37.3","upgraded":["w2","w3","w4","w5"],"skipped":["cp1","w1"]}`, string(again.Result))
	verify(t, testbed.AllAt("1.37.3"), testbed.Ran("cp1", "kubeadm upgrade apply v1.37.3", 1))
	untouched(t)
}

func TestScaleDownRemovesNodesWhileABudgetBlocksForAWhile(t *testing.T) {
	allow := forbid(t)
	leaving := webHosts(t)[:2]
	id := begin(t, ops.Request{Kind: operation.KindScaleDown, Nodes: leaving})
	until(t, id, blocked)
	allow()

	end := finish(t, id)

	require.Equal(t, ops.Done, end.State, text(end))
	var result operation.ScaleDownResult
	require.NoError(t, json.Unmarshal(end.Result, &result))
	require.Equal(t, operation.ScaleDownResult{Removed: leaving, Destroyed: leaving, Size: 4}, result)
	verify(t, testbed.Removed(leaving...))
	require.Len(t, nodes(t), 4)
	untouched(t)
}

// workersLeft are the names of workers that are in the cluster, the last three.
func workersLeft(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, n := range nodes(t) {
		if strings.HasPrefix(n.Name, "w") {
			names = append(names, n.Name)
		}
	}
	names = natural.Sorted(names)
	require.GreaterOrEqual(t, len(names), 3)
	return names[len(names)-3:]
}

func marked(t *testing.T, name string) bool {
	t.Helper()
	node, err := shared.Sandbox.Client().CoreV1().Nodes().Get(t.Context(), name, meta.GetOptions{})
	require.NoError(t, err)
	return node.Annotations["ebb/cordoned-by"] != ""
}

func TestUncordonGivesBackWhatADrainTook(t *testing.T) {
	left := workersLeft(t)
	drained, byHand := left[:2], left[2]
	end := finish(t, begin(t, ops.Request{Kind: operation.KindDrain, Nodes: drained}))
	require.Equal(t, ops.Done, end.State, text(end))
	operatorCordons(t, byHand, true)
	t.Cleanup(func() { operatorCordons(t, byHand, false) })
	verify(t, testbed.OnlyCordoned(left...))

	end = finish(t, begin(t, ops.Request{Kind: operation.KindUncordon, Nodes: left}))
	require.Equal(t, ops.Refused, end.State, text(end))
	require.Contains(t, end.Message, byHand+": cordoned by somebody else, not by Ebb; ask them, then use kubectl uncordon "+byHand)
	verify(t, testbed.OnlyCordoned(left...), testbed.InState(clusterstate.Running))

	operatorCordons(t, byHand, false)
	end = finish(t, begin(t, ops.Request{Kind: operation.KindUncordon, Nodes: left}))
	require.Equal(t, ops.Done, end.State, text(end))
	require.JSONEq(t, fmt.Sprintf(`{"uncordoned":["%s","%s"],"skipped":["%s"]}`, drained[0], drained[1], byHand), string(end.Result))
	require.False(t, marked(t, drained[0]))
	untouched(t)
}

func TestKubectlUncordonIsUnderstood(t *testing.T) {
	node := workersLeft(t)[1]
	end := finish(t, begin(t, ops.Request{Kind: operation.KindDrain, Nodes: []string{node}}))
	require.Equal(t, ops.Done, end.State, text(end))
	operatorCordons(t, node, false)
	operatorCordons(t, node, true)
	t.Cleanup(func() { operatorCordons(t, node, false) })
	require.True(t, marked(t, node), "kubectl knows nothing of the mark")

	end = finish(t, begin(t, ops.Request{Kind: operation.KindUncordon, Nodes: []string{node}}))
	require.Equal(t, ops.Refused, end.State, text(end))
	require.Contains(t, end.Message, node+": cordoned by somebody else")
	require.False(t, marked(t, node), "the mark is removed")
	verify(t, testbed.OnlyCordoned(node))
	operatorCordons(t, node, false)

	forbid(t)
	host := webHosts(t)[0]
	running := begin(t, ops.Request{Kind: operation.KindDrain, Nodes: []string{host}})
	until(t, running, blocked)
	operatorCordons(t, host, false)
	operatorCordons(t, host, true)
	t.Cleanup(func() { operatorCordons(t, host, false); untouched(t) })
	if err := shared.Ops.Cancel(t.Context(), running); err != nil {
		require.ErrorContains(t, err, "over") // it has seen the uncordon, and ended by itself
	}
	end = finish(t, running)
	require.True(t, end.RolledBack, text(end))
	verify(t, testbed.OnlyCordoned(host), testbed.InState(clusterstate.Running))
	require.False(t, marked(t, host), "no mark of an operation that is over")
}
