package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"ebb/internal/forecast"
	"ebb/internal/operation"
	"ebb/internal/ops"
	kubeversion "ebb/internal/version"
)

// refusedPlan is an operation that would not start now.
type refusedPlan struct{ reason string }

func (e *refusedPlan) Error() string { return "it would be refused now: " + e.reason }

func newPlan(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "plan", Short: "Show what an upgrade or a scale-down would do, and what is in the way",
		Args: noSuchCommand, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPlanUpgrade(a), newPlanScaleDown(a))
	return cmd
}

const aboutPlan = `
It reads the cluster and changes nothing. The budgets are those of this moment: a pod
that waits for one here may go through when its turn comes. It does not look at the
nodes over SSH; ` + "`ebb clusters check`" + ` does. When the operation would be refused
now, the exit code is 3.`

func newPlanUpgrade(a *app) *cobra.Command {
	var route routeFlags
	cmd := &cobra.Command{
		Use: "upgrade CLUSTER --to VERSION", Short: "Show what an upgrade would do",
		Long: "Show the order of the nodes, which are done already, what each drain would move, and\nwhat would be in the way." + aboutPlan,
		Args: arguments(1, 1), ValidArgsFunction: a.completeClusters,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := route.check(cmd); err != nil {
				return err
			}
			return a.plan(cmd.Context(), forecast.Question{Kind: operation.KindUpgrade, Cluster: args[0], Route: route.route()})
		},
	}
	route.flags(cmd)
	return cmd
}

func newPlanScaleDown(a *app) *cobra.Command {
	var names []string
	var count int
	cmd := &cobra.Command{
		Use: "scale-down CLUSTER (--nodes NAME,... | --count N)", Short: "Show what a scale-down would do",
		Long: "Show which nodes would go, what each drain would move, what would be in the way, and\nwhether the pods find room on the nodes that stay." + aboutPlan,
		Args: arguments(1, 1), ValidArgsFunction: a.completeClusters,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("nodes") == cmd.Flags().Changed("count") {
				return usage(cmd, "say which nodes: either --nodes NAME,... or --count N")
			}
			return a.plan(cmd.Context(), forecast.Question{Kind: operation.KindScaleDown, Cluster: args[0], Nodes: names, Count: count})
		},
	}
	cmd.Flags().StringSliceVar(&names, "nodes", nil, "names of the nodes to remove, comma-separated")
	cmd.Flags().IntVar(&count, "count", 0, "how many workers to remove, the newest first")
	return cmd
}

func (a *app) plan(ctx context.Context, q forecast.Question) error {
	clusters, err := a.clusters()
	if err != nil {
		return err
	}
	f, err := clusters.Plan(ctx, q)
	if err != nil {
		return err
	}
	if a.json() {
		err = json.NewEncoder(a.out).Encode(f)
	} else {
		err = printForecast(a.out, ops.Word(q.Kind), f)
	}
	if err == nil && f.Refusal != "" {
		return &refusedPlan{reason: f.Refusal}
	}
	return err
}

// printForecast prints a forecast for a person.
func printForecast(w io.Writer, what string, f forecast.Forecast) error {
	lines := []string{planTitle(what, f)}
	t := table{head: []string{"", "NODE", "ROLE", "VERSION", "", "MOVES"}}
	for i, s := range f.Steps {
		moves := ""
		if s.Drain.Node != "" {
			moves = count(s.Drain.Moves, "pod")
		}
		t.row(fmt.Sprintf("%d.", i+1), s.Node, string(s.Role), string(s.Version), s.Action, moves)
	}
	if len(f.Steps) > 0 {
		lines = append(append(lines, ""), t.lines()...)
	}
	lines = append(lines, section("In the way now:", obstacles(f))...)
	lines = append(lines, section("Think twice (with --strict a refusal, like what is in the way):", objections(f))...)
	lines = append(lines, section("Worth knowing:", risks(f))...)
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
	return err
}

func planTitle(what string, f forecast.Forecast) string {
	text := fmt.Sprintf("%s of %s, which is in state %s at %s", what, f.Cluster, f.State, f.Version)
	if f.Target != "" {
		text += fmt.Sprintf(", to %s", f.Target)
	}
	if len(f.Hops) > 0 {
		text += ", then " + strings.Join(kubeversion.Strings(f.Hops), ", then ")
	}
	if f.Retry {
		text += ": it goes on where the last one stopped"
	}
	if f.Parallel > 1 {
		text += fmt.Sprintf(" (%d workers at once)", f.Parallel)
	}
	return text
}

func section(title string, texts []string) []string {
	if len(texts) == 0 {
		return nil
	}
	lines := []string{"", title}
	for _, text := range texts {
		lines = append(lines, "  "+text)
	}
	return lines
}

func obstacles(f forecast.Forecast) (texts []string) {
	texts = append(texts, f.Unfit...)
	for _, s := range f.Steps {
		for _, b := range s.Drain.Blocked {
			texts = append(texts, s.Node+": "+b.String())
		}
	}
	if room := f.Room.String(); room != "" {
		texts = append(texts, room)
	}
	return texts
}

func objections(f forecast.Forecast) (texts []string) {
	for _, s := range f.Steps {
		for _, o := range s.Drain.Objections {
			texts = append(texts, o.String())
		}
	}
	return texts
}

func risks(f forecast.Forecast) (texts []string) {
	for _, s := range f.Steps {
		for _, risk := range s.Drain.Risks {
			texts = append(texts, s.Node+": "+risk)
		}
	}
	return texts
}
