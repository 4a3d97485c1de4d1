package main

import "github.com/spf13/cobra"

func newWatch(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "watch OPERATION", Short: "Follow an operation until it ends",
		Long: `Follow an operation until it ends: a live table on a terminal, one line for each
change otherwise, one JSON object for each change with -o json (the last one has
the outcome). Ctrl-C stops the following, not the operation.

` + aboutExitCodes,
		Args: arguments(1, 1), ValidArgsFunction: a.completeOperations,
		RunE: func(cmd *cobra.Command, args []string) error {
			operations, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			return a.follow(cmd.Context(), operations, args[0])
		},
	}
}
