package operations

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"ebb/internal/cluster"
	"ebb/internal/clusterstate"
	"ebb/internal/config"
	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/internal/testbed"
	"ebb/internal/version"
	"ebb/internal/workers"
)

// ebb runs the command line against the test bed.
func ebb(t *testing.T, args ...string) (code int, out string) {
	t.Helper()
	binary, err := testbed.Binary("ebb")
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), binary, args...)
	cmd.Env = append(os.Environ(), shared.Env()...)
	body, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		require.NoError(t, err)
	}
	return cmd.ProcessState.ExitCode(), string(body)
}

// offered are the versions that the package repositories of the sandbox have, one
// step apart.
var offered = []string{"1.36.3", "1.37.2", "1.37.3", "1.38.1", "1.38.2", "1.38.3", "1.39.2", "1.40.1"}

// next is the version that the cluster can go to next, and the one it is at.
func next(t *testing.T) (to, from string) {
	t.Helper()
	versions := reported(t)
	for _, version := range versions {
		from = version
	}
	for node, version := range versions {
		require.Equal(t, from, version, "%s and another node", node)
	}
	i := slices.Index(offered, from)
	require.True(t, i >= 0 && i+1 < len(offered), "%s", from)
	return offered[i+1], from
}

// reported are the versions that the kubelets report, by node.
func reported(t *testing.T) map[string]string {
	t.Helper()
	versions := map[string]string{}
	for _, n := range nodes(t) {
		versions[n.Name] = string(version.Of(n.Status.NodeInfo.KubeletVersion))
	}
	return versions
}

func drainFailsFast(t *testing.T) {
	t.Helper()
	require.NoError(t, shared.Configure(func(c *config.Cluster) {
		c.Drain.Timeout, c.Drain.RetryInterval, c.Scale.Attempts = config.Duration(time.Second), config.Duration(10*time.Minute), 2
	}))
	t.Cleanup(func() { require.NoError(t, shared.Configure(nil)) })
}

func TestRetryNowDoesNotWaitForTheInterval(t *testing.T) {
	allow := forbid(t)
	drainFailsFast(t)
	node := webHosts(t)[0]
	id := begin(t, ops.Request{Kind: operation.KindDrain, Nodes: []string{node}})
	until(t, id, func(o ops.Operation) bool { return phase(o, node) == operation.PhaseWaitingToRetry })
	allow()
	require.NoError(t, shared.Configure(nil)) // the second attempt has the time that it needs

	code, out := ebb(t, "retry", id)
	require.Zero(t, code, out)
	require.Contains(t, out, "the next attempt begins: "+node)
	end := finish(t, id)
	require.Equal(t, ops.Done, end.State, text(end))

	code, out = ebb(t, "retry", id)
	require.Equal(t, 3, code, out)
	require.Contains(t, out, "it is over")
	operatorCordons(t, node, false)
	untouched(t)
}

func TestPausedScaleDownTouchesNoFurtherNode(t *testing.T) {
	allow := forbid(t)
	require.NoError(t, shared.Configure(func(c *config.Cluster) { c.Drain.Timeout = config.Duration(time.Minute) }))
	t.Cleanup(func() { require.NoError(t, shared.Configure(nil)) })
	leaving := webHosts(t)[:2]
	id := begin(t, ops.Request{Kind: operation.KindScaleDown, Nodes: leaving})
	until(t, id, blocked)

	code, out := ebb(t, "pause", id)
	require.Zero(t, code, out)
	code, out = ebb(t, "pause", id)
	require.Equal(t, 3, code, out)
	require.Contains(t, out, "is paused already")
	allow()
	until(t, id, func(o ops.Operation) bool { return phase(o, leaving[0]) == operation.PhaseDrained })
	require.NoError(t, shared.KillWorkers(), "a pause outlives the worker")
	_, err := shared.Worker(t.Context())
	require.NoError(t, err)
	until(t, id, func(o ops.Operation) bool {
		return phase(o, leaving[1]) == operation.PhaseCordoned && !o.Status.Paused.IsZero()
	})
	require.NoError(t, shared.Ops.Cancel(t.Context(), id))

	end := finish(t, id)
	require.Equal(t, ops.Cancelled, end.State, text(end))
	require.True(t, end.RolledBack)
	untouched(t)
}

// nodeVerbs lets the worker's role have the verbs on nodes, until the test is over or restore is called.
func nodeVerbs(t *testing.T, verbs ...string) (restore func()) {
	t.Helper()
	roles := shared.Sandbox.Client().RbacV1().ClusterRoles()
	set := func(verbs []string) (before []string) {
		require.NoError(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
			role, err := roles.Get(context.Background(), "ebb-worker", meta.GetOptions{})
			if err != nil {
				return err
			}
			i := slices.IndexFunc(role.Rules, func(r rbac.PolicyRule) bool { return slices.Contains(r.Resources, "nodes") })
			before, role.Rules[i].Verbs = role.Rules[i].Verbs, verbs
			_, err = roles.Update(context.Background(), role, meta.UpdateOptions{})
			return err
		}))
		return before
	}
	before := set(verbs)
	restore = func() { set(before) }
	t.Cleanup(restore)
	return restore
}

func TestScaleDownThatCannotRemoveIsInAlertAndTheClusterRecovers(t *testing.T) {
	allow := forbid(t)
	require.NoError(t, shared.Configure(func(c *config.Cluster) { c.Drain.Timeout = config.Duration(time.Minute) }))
	t.Cleanup(func() { require.NoError(t, shared.Configure(nil)) })
	leaving, size := webHosts(t)[:1], len(nodes(t))
	id := begin(t, ops.Request{Kind: operation.KindScaleDown, Nodes: leaving})
	until(t, id, blocked)
	restore := nodeVerbs(t, "get", "list", "watch", "patch")
	allow()

	end := finish(t, id)
	require.Equal(t, ops.Failed, end.State, text(end))
	for _, part := range []string{
		"removed none, destroyed none, still in the cluster " + leaving[0], "uncordoned " + leaving[0],
		fmt.Sprintf("the cluster has %d nodes", size), "state Alert", "forbidden",
	} {
		require.Contains(t, end.Message, part)
	}
	verify(t, testbed.InState(clusterstate.Alert), testbed.OnlyCordoned(), testbed.AllAvailable())
	restore()

	reconcile(t)
	untouched(t)
}

// reconcile has the reconciler's schedule run now, rather than at the next full
// minute, until it has nothing to do any more: it is paused then.
func reconcile(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	schedule := shared.Client.ScheduleClient().GetHandle(ctx, workers.ReconcilerID(testbed.ClusterName))
	require.NoError(t, schedule.Trigger(ctx, triggerNow))
	for _, want := range []func() bool{
		func() bool { return state(t) == clusterstate.Running },
		func() bool { return paused(t) },
	} {
		require.NoError(t, testbed.Poll(ctx, func() (bool, error) { return want(), nil }))
		require.NoError(t, schedule.Trigger(ctx, triggerNow))
	}
	for _, run := range reconciliations(t) {
		require.NoError(t, shared.Client.GetWorkflow(ctx, run, "").Get(ctx, nil))
		record(t, run)
	}
}

// A node that is down keeps the cluster in Alert.
func TestFailedUpgradeThatChangedNothingRecovers(t *testing.T) {
	cp1 := shared.Sandbox.Machine("cp1")
	require.NoError(t, cp1.FailScript(1))
	to, _ := next(t)
	end := finish(t, begin(t, ops.Request{Kind: operation.KindUpgrade, Route: version.Route{Target: version.Version(to)}}))
	require.Equal(t, ops.Failed, end.State, text(end))
	verify(t, testbed.InState(clusterstate.Alert), testbed.TargetIs(to))
	require.NoError(t, cp1.HealScript())

	worker := shared.Sandbox.Machine(workersLeft(t)[0])
	require.NoError(t, worker.SetPower(t.Context(), false))
	t.Cleanup(func() { require.NoError(t, worker.SetPower(context.Background(), true)) })
	reconcileOnce(t)
	verify(t, testbed.InState(clusterstate.Alert), testbed.TargetIs(to))

	require.NoError(t, worker.SetPower(t.Context(), true))
	require.NoError(t, testbed.Poll(t.Context(), func() (bool, error) {
		return !slices.ContainsFunc(nodes(t), func(n core.Node) bool { return !cluster.NodeReady(&n) }), nil
	}))
	reconcile(t)
	verify(t, testbed.TargetIs(""))
	untouched(t)
}

func TestSkippedWorkerLeavesTheUpgradeToBeFinished(t *testing.T) {
	allow := forbid(t)
	drainFailsFast(t)
	to, from := next(t)
	id := begin(t, ops.Request{Kind: operation.KindUpgrade, Route: version.Route{Target: version.Version(to)}})
	node := ""
	until(t, id, func(o ops.Operation) bool {
		for _, host := range webHosts(t) {
			if phase(o, host) == operation.PhaseWaitingToRetry {
				node = host
			}
		}
		return node != ""
	})
	require.NoError(t, shared.Configure(nil)) // the others have the time that they need
	allow()
	code, out := ebb(t, "skip-node", id, "cp1")
	require.Equal(t, 3, code, out)
	require.Contains(t, out, "cp1")
	code, out = ebb(t, "skip-node", id, node)
	require.Zero(t, code, out)

	end := finish(t, id)
	require.Equal(t, ops.Failed, end.State, text(end))
	require.Contains(t, end.Message, node+" was left out by the operator")
	verify(t, testbed.InState(clusterstate.Alert), testbed.OnlyCordoned(), testbed.NodeAt("cp1", to))
	require.Equal(t, from, reported(t)[node])

	again := finish(t, begin(t, ops.Request{Kind: operation.KindUpgrade, Route: version.Route{Target: version.Version(to)}}))
	require.Equal(t, ops.Done, again.State, text(again))
	require.Contains(t, string(again.Result), fmt.Sprintf(`"upgraded":[%q]`, node))
	verify(t, testbed.AllAt(to))
	untouched(t)
}

// A script of one's own, which fails before anything is drained.
func TestStageThatFailsTouchesNoNode(t *testing.T) {
	script := filepath.Join(t.TempDir(), "upgrade.sh")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\necho \"phase $EBB_PHASE to $EBB_TARGET_VERSION\"\necho 'no such package' >&2\nexit 3\n"), 0o600))
	require.NoError(t, shared.Configure(func(c *config.Cluster) { c.Upgrade.Script = script }))
	t.Cleanup(func() { require.NoError(t, shared.Configure(nil)) })

	to, _ := next(t)
	end := finish(t, begin(t, ops.Request{Kind: operation.KindUpgrade, Route: version.Route{Target: version.Version(to)}}))

	require.Equal(t, ops.RolledBack, end.State, text(end))
	require.Contains(t, end.Message, "no node was touched; the cluster is in state Running")
	require.Contains(t, end.Message, "exit status 3: phase stage to "+to+"\nno such package")
	untouched(t)
}

func TestUpgradeCancelledDuringADrain(t *testing.T) {
	allow := forbid(t)
	require.NoError(t, shared.Configure(func(c *config.Cluster) { c.Drain.Timeout = config.Duration(time.Minute) }))
	t.Cleanup(func() { require.NoError(t, shared.Configure(nil)) })
	to, _ := next(t)
	id := begin(t, ops.Request{Kind: operation.KindUpgrade, Route: version.Route{Target: version.Version(to)}})
	until(t, id, blocked)
	require.NoError(t, shared.Ops.Cancel(t.Context(), id))

	end := finish(t, id)
	require.Equal(t, ops.Cancelled, end.State, text(end))
	require.False(t, end.RolledBack, "the control plane stays upgraded")
	verify(t, testbed.InState(clusterstate.Alert), testbed.TargetIs(to), testbed.OnlyCordoned(), testbed.NodeAt("cp1", to))

	allow()
	again := finish(t, begin(t, ops.Request{Kind: operation.KindUpgrade, Route: version.Route{Target: version.Version(to)}}))
	require.Equal(t, ops.Done, again.State, text(again))
	untouched(t)
}

func TestUpgradeInHopsAndItsLog(t *testing.T) {
	hop, from := next(t)
	for minor := func(v string) string { return strings.Join(strings.Split(v, ".")[:2], ".") }; minor(hop) == minor(from); {
		hop = offered[slices.Index(offered, hop)+1]
	}
	target := map[string]string{"1.37.2": "1.38.1", "1.38.1": "1.39.2", "1.39.2": "1.40.1"}[hop]
	code, out := ebb(t, "plan", "upgrade", testbed.ClusterName, "--to", target)
	require.Equal(t, 3, code, out)
	require.Contains(t, out, ".x, then "+target)
	code, out = ebb(t, "plan", "upgrade", testbed.ClusterName, "--to", target, "--hops", hop)
	require.Zero(t, code, out)
	require.Contains(t, out, "to "+hop+", then "+target)
	require.Regexp(t, `1\. +cp1 +first-control-plane +`+regexp.QuoteMeta(from)+` +kubeadm upgrade apply`, out)

	end := finish(t, begin(t, ops.Request{Kind: operation.KindUpgrade, Route: version.Route{Hops: []version.Version{version.Version(hop)}, Target: version.Version(target)}}))
	require.Equal(t, ops.Done, end.State, text(end))
	require.Contains(t, string(end.Result), fmt.Sprintf(`"hops":[%q]`, hop))
	verify(t, testbed.AllAt(target), testbed.InState(clusterstate.Running), testbed.TargetIs(""),
		testbed.Ran("cp1", "kubeadm upgrade apply v"+hop, 1), testbed.Ran("cp1", "kubeadm upgrade apply v"+target, 1))

	var lines []string
	require.NoError(t, shared.Ops.Events(t.Context(), end.ID, ops.EventFilter{Types: []ops.EventType{ops.LogEvent}, Node: "cp1"}, func(l ops.Event) error {
		require.Equal(t, "cp1", l.Node)
		lines = append(lines, fmt.Sprintf("%s %d %s", l.Phase, l.Hop, l.Text))
		return nil
	}))
	log := strings.Join(lines, "\n")
	for _, part := range []string{"stage 0 ", "upgrade 0 ", "stage 1 ", "upgrade 1 ", "v" + hop, "v" + target} {
		require.Contains(t, log, part)
	}
	_, out = ebb(t, "logs", end.ID, "--follow")
	require.Contains(t, out, "cp1 upgrade hop 2 | ", "following an operation that is over ends")
	untouched(t)
}

func TestPlanOfAScaleDownNamesWhatIsInTheWay(t *testing.T) {
	forbid(t)
	node := webHosts(t)[0]
	code, out := ebb(t, "plan", "scale-down", testbed.ClusterName, "--nodes", node)
	require.Zero(t, code, out)
	require.Contains(t, out, node+": default/web-")
	require.Contains(t, out, "budget default/web")
	code, out = ebb(t, "plan", "scale-down", testbed.ClusterName, "--nodes", "w99")
	require.Equal(t, 3, code, out)
	require.Contains(t, out, "node w99 is not in the cluster")
	untouched(t)
}
