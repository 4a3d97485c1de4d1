package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"ebb/internal/forecast"
	"ebb/internal/ops"
	"ebb/internal/policy"
)

func newStatus(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "status [CLUSTER | OPERATION]", Short: "Show the clusters, one cluster with its nodes, or one operation",
		Long: `Without an argument: the state of every cluster in ebb.yaml. With a cluster: its
state, the operation that has it, and its nodes. With an operation: where it is, or
how it ended. State and lock are read from the cluster itself, so this works
without an engine.`,
		Args: arguments(0, 1), ValidArgsFunction: a.completeAnything,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.statusAll(cmd.Context())
			}
			return a.statusOf(cmd.Context(), args[0])
		},
	}
}

// statusOf shows the cluster, or else the operation, of that name.
func (a *app) statusOf(ctx context.Context, name string) error {
	clusters, err := a.clusters()
	if err != nil { // without clusters it can only be an operation
		return a.statusOperation(ctx, name, nil)
	}
	view, err := clusters.Look(ctx, name)
	var unknown *forecast.UnknownClusterError
	switch {
	case errors.As(err, &unknown):
		return a.statusOperation(ctx, name, unknown.Known)
	case err != nil:
		return err
	case a.json():
		return json.NewEncoder(a.out).Encode(view)
	}
	_, err = fmt.Fprintln(a.out, strings.Join(clusterLines(view), "\n"))
	return err
}

func (a *app) statusOperation(ctx context.Context, id string, clusters []string) error {
	operations, err := a.connect(ctx)
	if err != nil {
		return err
	}
	op, err := operations.Get(ctx, id)
	var unknown *ops.UnknownError
	if errors.As(err, &unknown) && len(clusters) > 0 {
		return fmt.Errorf("%w; and no cluster: ebb.yaml has %s", err, strings.Join(clusters, ", "))
	}
	if err != nil {
		return err
	}
	if a.json() {
		return json.NewEncoder(a.out).Encode(op)
	}
	width, _, _ := terminal(a.out)
	lines := frame(op, time.Now(), width, 0)
	if op.State.Over() {
		lines = append(lines, "", verdict(op))
	}
	_, err = fmt.Fprintln(a.out, strings.Join(lines, "\n"))
	return err
}

// clusterLines is a cluster for a person.
func clusterLines(v forecast.Overview) []string {
	lines := []string{fmt.Sprintf("cluster %s: %s", v.Cluster, v.State)}
	for _, fact := range []struct{ name, value string }{
		{"operation", v.Holder}, {"target", string(v.Target)}, {"version", string(v.Version)}, {"last", v.Last}, {"cleared", v.Cleared}, {"message", v.Message},
	} {
		if fact.value != "" {
			lines = append(lines, fmt.Sprintf("  %-10s %s", fact.name, strings.ReplaceAll(fact.value, "\n", "\n             ")))
		}
	}
	t := table{head: []string{"NODE", "ROLE", "VERSION", "RECORDED", "READY", "SCHEDULABLE"}}
	for _, n := range policy.ByName(v.Nodes) {
		role := string(n.Role)
		if n.Manual {
			role += " (upgraded by hand)"
		}
		t.row(n.Name, role, string(n.Version), orDash(string(n.Recorded)), yesNo(n.Ready), schedulable(n))
	}
	return slices.Concat(lines, []string{""}, t.lines(), agentLines(v))
}

// agentLines are the agents of a cluster's tunnel, none when it has no tunnel here.
func agentLines(v forecast.Overview) []string {
	switch {
	case v.AgentsError != "":
		return []string{"", "agents of the tunnel are not known: " + v.AgentsError}
	case v.Agents == nil:
		return nil
	case len(v.Agents) == 0:
		return []string{"", "no agent of the tunnel is connected"}
	}
	t := table{head: []string{"AGENT", "STATE", "STREAMS", "SINCE", "OFFERS"}}
	for _, a := range v.Agents {
		t.row(a.ID, a.State, fmt.Sprint(a.Streams), a.Since.UTC().Format(time.RFC3339), orDash(a.Offers))
	}
	return append([]string{""}, t.lines()...)
}

func schedulable(n policy.Node) string {
	switch {
	case !n.Unschedulable:
		return "yes"
	case n.CordonedBy != "":
		return "cordoned by " + n.CordonedBy
	}
	return "cordoned, not by Ebb"
}

// statusAll shows every cluster on one line; one that does not answer is an
// error, after the others are shown.
func (a *app) statusAll(ctx context.Context) error {
	clusters, err := a.clusters()
	if err != nil {
		return err
	}
	views, err := clusters.List(ctx)
	if err != nil {
		return err
	}
	if err := a.printClusters(views); err != nil {
		return err
	}
	silent := 0
	for _, v := range views {
		if v.Error != "" {
			silent++
		}
	}
	if silent > 0 {
		return fmt.Errorf("%d of %d clusters did not answer: see `ebb clusters check`", silent, len(views))
	}
	return nil
}

func (a *app) printClusters(views []forecast.Overview) error {
	t := table{head: []string{"CLUSTER", "STATE", "NODES", "OPERATION", "TARGET", "MESSAGE"}}
	for _, v := range views {
		if a.json() {
			if err := json.NewEncoder(a.out).Encode(v); err != nil {
				return err
			}
			continue
		}
		state, text := string(v.State), v.Message
		if v.Error != "" {
			state, text = "unknown", v.Error
		}
		t.row(v.Cluster, state, fmt.Sprint(len(v.Nodes)), orDash(v.Holder), orDash(string(v.Target)), firstLine(text))
	}
	if a.json() {
		return nil
	}
	width, _, _ := terminal(a.out)
	for _, line := range t.lines() {
		if _, err := fmt.Fprintln(a.out, fit(line, width)); err != nil {
			return err
		}
	}
	return nil
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
