package main

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
	"ebb/internal/ops"
	"ebb/internal/sandbox"
	"ebb/internal/testbed"
	"ebb/workflows"
)

// versions the demo upgrades to: what the sandbox's package repositories offer.
const (
	firstTarget  = "1.37.2"
	secondTarget = "1.37.3"
)

// scaleDown removes two nodes. A budget allows nothing until an operator relaxes it.
func (d *demo) scaleDown(ctx context.Context) error {
	if err := d.forbid(ctx, "cart"); err != nil {
		return err
	}
	end, err := d.operate(ctx, ops.Request{Kind: workflows.KindScaleDown, Count: 2}, ops.Done, func(ctx context.Context, id string) error {
		if err := testbed.Until(ctx, d.bed.Ops, id, testbed.BlockedBy("default/cart")); err != nil {
			return err
		}
		d.say("          (an operator allows one pod of cart to go at a time)\n")
		return d.bed.Sandbox.SetBudget(ctx, "cart", budgets["cart"])
	})
	if err != nil {
		return err
	}
	var result workflows.ScaleDownResult
	if err := json.Unmarshal(end.Result, &result); err != nil {
		return err
	}
	if len(result.Removed) != 2 || result.Size != 5 {
		return fmt.Errorf("removed %v and left %d nodes, want two gone and five left", result.Removed, result.Size)
	}
	return d.bed.Verify(ctx, testbed.Removed(result.Removed...), testbed.OnlyCordoned(), testbed.InState(clusterstate.Running), testbed.Whole())
}

// impossible tries to remove a node whose pods may never go.
func (d *demo) impossible(ctx context.Context) error {
	if err := d.bed.Configure(shortDrain); err != nil {
		return err
	}
	if err := d.forbid(ctx, "mail"); err != nil {
		return err
	}
	hosts, err := d.bed.Hosts(ctx, "mail")
	if err != nil {
		return err
	}
	node := hosts[0]
	end, err := d.operate(ctx, ops.Request{Kind: workflows.KindScaleDown, Nodes: []string{node}}, ops.RolledBack, nil)
	if err != nil {
		return err
	}
	for _, part := range []string{"node " + node, "default/mail-", "budget default/mail", "nothing was removed"} {
		if !strings.Contains(end.Message, part) {
			return fmt.Errorf("the error does not say %q: %s", part, end.Message)
		}
	}
	return errors.Join(
		d.bed.Verify(ctx, testbed.OnlyCordoned(), testbed.InState(clusterstate.Running), testbed.Whole()),
		d.bed.Sandbox.SetBudget(ctx, "mail", budgets["mail"]), d.bed.Configure(nil))
}

// killedWorker upgrades all nodes and kills the only worker process while it drains.
func (d *demo) killedWorker(ctx context.Context) error {
	if err := d.forbid(ctx, "web"); err != nil { // so that the kill surely meets a drain
		return err
	}
	_, err := d.operate(ctx, ops.Request{Kind: workflows.KindUpgrade, Target: firstTarget}, ops.Done, func(ctx context.Context, id string) error {
		if err := testbed.Until(ctx, d.bed.Ops, id, testbed.OnlyBlockedBy("default/web")); err != nil {
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
	checks := []testbed.Check{testbed.AllAt(firstTarget), testbed.OnlyCordoned(), testbed.InState(clusterstate.Running), testbed.TargetIs(""), testbed.Whole()}
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

// resumed has an upgrade fail on a worker, and starts it again.
func (d *demo) resumed(ctx context.Context) error {
	hosts, err := d.bed.Hosts(ctx, "web")
	if err != nil {
		return err
	}
	node := hosts[0]
	machine := d.bed.Sandbox.Machine(node)
	if err := machine.FailScript(1); err != nil {
		return err
	}
	end, err := d.operate(ctx, ops.Request{Kind: workflows.KindUpgrade, Target: secondTarget}, ops.Failed, nil)
	if err != nil {
		return err
	}
	if !strings.Contains(end.Message, "node "+node) {
		return fmt.Errorf("the error does not name node %s: %s", node, end.Message)
	}
	if err := d.bed.Verify(ctx, testbed.InState(clusterstate.Alert), testbed.TargetIs(secondTarget), testbed.OnlyCordoned(), testbed.NodeAt("cp1", secondTarget)); err != nil {
		return err
	}
	d.say("          (an operator mends %s)\n", node)
	if err := machine.HealScript(); err != nil {
		return err
	}
	end, err = d.operate(ctx, ops.Request{Kind: workflows.KindUpgrade, Target: secondTarget}, ops.Done, nil)
	if err != nil {
		return err
	}
	var result workflows.UpgradeResult
	if err := json.Unmarshal(end.Result, &result); err != nil {
		return err
	}
	if !slices.Contains(result.Skipped, "cp1") || !slices.Contains(result.Upgraded, node) {
		return fmt.Errorf("skipped %v and upgraded %v, want cp1 skipped and %s upgraded", result.Skipped, result.Upgraded, node)
	}
	return d.bed.Verify(ctx, testbed.AllAt(secondTarget), testbed.OnlyCordoned(), testbed.InState(clusterstate.Running), testbed.TargetIs(""),
		testbed.Ran("cp1", "kubeadm upgrade apply v"+secondTarget, 1), testbed.Whole())
}

func (d *demo) forbid(ctx context.Context, workload string) error {
	d.say("          (the budget of %s allows no pod to go)\n", workload)
	return d.bed.Sandbox.SetBudget(ctx, workload, sandbox.Budget{MaxUnavailable: "0"})
}

func shortDrain(c *config.Cluster) { c.Drain.Timeout = config.Duration(5 * time.Second) }

// commandLine is what a person would have typed.
func commandLine(r ops.Request) string {
	text := ops.Word(r.Kind) + " " + r.Cluster
	switch {
	case r.Target != "":
		return text + " --to " + r.Target
	case r.Count > 0:
		return fmt.Sprintf("%s --count %d", text, r.Count)
	}
	return text + " --nodes " + strings.Join(r.Nodes, ",")
}

// environment is how a shell sets variables for one command.
func environment(variables []string) string { return strings.Join(variables, " ") }
