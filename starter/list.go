package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"ebb/internal/ops"
)

func newList(a *app) *cobra.Command {
	var (
		filter ops.Filter
		kind   string
	)
	cmd := &cobra.Command{
		Use: "list", Short: "List operations, the newest first", Aliases: []string{"ls"},
		Args: arguments(0, 0), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if kind != "" {
				var err error
				if filter.Kind, err = ops.ParseKind(kind); err != nil {
					return err
				}
			}
			operations, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			list, err := operations.List(cmd.Context(), filter)
			if err != nil {
				return err
			}
			return a.printList(list)
		},
	}
	cmd.Flags().StringVar(&filter.Cluster, "cluster", "", "only of this cluster")
	cmd.Flags().StringVar(&kind, "kind", "", "only of this kind: drain, scale-down or upgrade")
	cmd.Flags().BoolVar(&filter.Open, "open", false, "only those that are not over")
	cmd.Flags().IntVar(&filter.Limit, "limit", 0, "at most so many (default 100)")
	return cmd
}

func (a *app) printList(list []ops.Operation) error {
	if a.json() {
		encoder := json.NewEncoder(a.out)
		for _, op := range list {
			if err := encoder.Encode(op); err != nil {
				return err
			}
		}
		return nil
	}
	if len(list) == 0 {
		_, err := fmt.Fprintln(a.out, "no operations")
		return err
	}
	t := table{head: []string{"OPERATION", "WHAT", "STATE", "STARTED", "TOOK"}}
	for _, op := range list {
		t.row(op.ID, op.String(), stateText(op), clock(op.Started), took(op))
	}
	return t.print(a.out)
}
