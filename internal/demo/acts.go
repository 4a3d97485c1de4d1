package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"ebb/internal/clusterstate"
	"ebb/internal/config"
	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/internal/sandbox"
	"ebb/internal/testbed"
	"ebb/internal/version"
)

// versions the demo upgrades to: what the sandbox's package repositories offer.
const (
	firstTarget  = "1.37.2"
	secondTarget = "1.37.3"
)

// scaleDown removes two nodes. A budget allows nothing until an operator relaxes it.
func (d *demo) scaleDown(ctx context.Context) error {
	if err := d.denyEvictions(ctx, "cart"); err != nil {
		return err
	}
	end, err := d.operate(ctx, ops.Request{Kind: operation.KindScaleDown, Count: 2}, ops.Done, func(ctx context.Context, id string) error {
		if err := testbed.WaitForOperation(ctx, d.bed.Ops, id, testbed.BlockedBy("default/cart")); err != nil {
			return err
		}
		d.say("          (an operator allows one pod of cart to go at a time)\n")
		return d.bed.Sandbox.SetBudget(ctx, "cart", budgets["cart"])
	})
	if err != nil {
		return err
	}
	var result operation.ScaleDownResult
	if err := json.Unmarshal(end.Result, &result); err != nil {
		return err
	}
	if len(result.Removed) != 2 || result.Size != 5 {
		return fmt.Errorf("removed %v and left %d nodes, want two gone and five left", result.Removed, result.Size)
	}
	return d.bed.Verify(ctx, testbed.Removed(result.Removed...), testbed.OnlyCordoned(), testbed.InState(clusterstate.Running), testbed.AllAvailable())
}

// rolledBack tries to remove a node whose pods may never go.
func (d *demo) rolledBack(ctx context.Context) error {
	if err := d.bed.Configure(shortDrain); err != nil {
		return err
	}
	if err := d.denyEvictions(ctx, "mail"); err != nil {
		return err
	}
	hosts, err := d.bed.NodesOf(ctx, "mail")
	if err != nil {
		return err
	}
	node := hosts[0]
	end, err := d.operate(ctx, ops.Request{Kind: operation.KindScaleDown, Nodes: []string{node}}, ops.RolledBack, func(ctx context.Context, id string) error {
		return testbed.WaitForOperation(ctx, d.bed.Ops, id, testbed.BlockedBy("default/mail"))
	})
	if err != nil {
		return err
	}
	if out := end.Outcome; out == nil || out.Cause.Type != operation.TypeDrain || out.Removal != nil || !slices.Equal(out.Uncordoned, []string{node}) {
		return fmt.Errorf("the outcome is %+v, want a failed drain, no node removed and %s uncordoned", out, node)
	}
	return errors.Join(
		d.bed.Verify(ctx, testbed.OnlyCordoned(), testbed.InState(clusterstate.Running), testbed.AllAvailable()),
		d.bed.Sandbox.SetBudget(ctx, "mail", budgets["mail"]), d.bed.Configure(nil))
}

// workerKilled upgrades all nodes and kills the only worker process while it drains.
func (d *demo) workerKilled(ctx context.Context) error {
	if err := d.denyEvictions(ctx, "web"); err != nil { // so that the kill surely meets a drain
		return err
	}
	_, err := d.operate(ctx, ops.Request{Kind: operation.KindUpgrade, Route: version.Route{Target: firstTarget}}, ops.Done, func(ctx context.Context, id string) error {
		if err := testbed.WaitForOperation(ctx, d.bed.Ops, id, testbed.OnlyBlockedBy("default/web")); err != nil {
			return err
		}
		d.say("          (the worker process is killed with SIGKILL; a new one is started)\n")
		if err := d.bed.KillWorkers(); err != nil {
			return err
		}
		if _, err := d.bed.Worker(ctx); err != nil {
			return err
		}
		return d.bed.Sandbox.SetBudget(ctx, "web", budgets["web"])
	})
	if err != nil {
		return err
	}
	checks := []testbed.Check{testbed.AllAt(firstTarget), testbed.OnlyCordoned(), testbed.InState(clusterstate.Running), testbed.TargetIs(""), testbed.AllAvailable()}
	return d.bed.Verify(ctx, append(checks, d.upgradedOnce(ctx)...)...)
}

// upgradedOnce checks that kubeadm upgrade ran once on each node.
func (d *demo) upgradedOnce(ctx context.Context) []testbed.Check {
	list, err := d.bed.Sandbox.Nodes(ctx)
	if err != nil {
		return []testbed.Check{func(context.Context, *testbed.Bed) error { return err }}
	}
	var checks []testbed.Check
	for _, n := range list {
		checks = append(checks, testbed.Ran(n.Name, "kubeadm upgrade", 1))
	}
	return checks
}

// upgradeResumed has an upgrade fail on a worker, and starts it again.
func (d *demo) upgradeResumed(ctx context.Context) error {
	hosts, err := d.bed.NodesOf(ctx, "web")
	if err != nil {
		return err
	}
	node := hosts[0]
	machine := d.bed.Sandbox.Machine(node)
	if err := machine.FailScript(1); err != nil {
		return err
	}
	end, err := d.operate(ctx, ops.Request{Kind: operation.KindUpgrade, Route: version.Route{Target: secondTarget}}, ops.Failed, nil)
	if err != nil {
		return err
	}
	if failed := failedNodes(end); !slices.Equal(failed, []string{node}) {
		return fmt.Errorf("the upgrade failed at %v, want %s", failed, node)
	}
	if err := d.bed.Verify(ctx, testbed.InState(clusterstate.Alert), testbed.TargetIs(secondTarget), testbed.OnlyCordoned(), testbed.NodeAt("cp1", secondTarget)); err != nil {
		return err
	}
	d.say("          (an operator mends %s)\n", node)
	if err := machine.HealScript(); err != nil {
		return err
	}
	end, err = d.operate(ctx, ops.Request{Kind: operation.KindUpgrade, Route: version.Route{Target: secondTarget}}, ops.Done, nil)
	if err != nil {
		return err
	}
	var result operation.UpgradeResult
	if err := json.Unmarshal(end.Result, &result); err != nil {
		return err
	}
	if !slices.Contains(result.Skipped, "cp1") || !slices.Contains(result.Upgraded, node) {
		return fmt.Errorf("skipped %v and upgraded %v, want cp1 skipped and %s upgraded", result.Skipped, result.Upgraded, node)
	}
	return d.bed.Verify(ctx, testbed.AllAt(secondTarget), testbed.OnlyCordoned(), testbed.InState(clusterstate.Running), testbed.TargetIs(""),
		testbed.Ran("cp1", "kubeadm upgrade apply v"+secondTarget, 1), testbed.AllAvailable())
}

// failedNodes returns the nodes at which an operation failed.
func failedNodes(op ops.Operation) (failed []string) {
	for _, n := range op.Status.Nodes {
		if n.Phase == operation.PhaseFailed {
			failed = append(failed, n.Node)
		}
	}
	return failed
}

// denyEvictions makes the budget of a workload allow no disruption.
func (d *demo) denyEvictions(ctx context.Context, workload string) error {
	d.say("          (the budget of %s allows no pod to go)\n", workload)
	return d.bed.Sandbox.SetBudget(ctx, workload, sandbox.Budget{MaxUnavailable: "0"})
}

func shortDrain(c *config.Cluster) { c.Drain.Timeout = config.Duration(5 * time.Second) }

// commandLine returns what a person would have typed.
func commandLine(r ops.Request) string {
	text := ops.Word(r.Kind) + " " + r.Cluster
	switch {
	case r.Target != "":
		return text + " --to " + string(r.Target)
	case r.Count > 0:
		return fmt.Sprintf("%s --count %d", text, r.Count)
	}
	return text + " --nodes " + strings.Join(r.Nodes, ",")
}
