package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"ebb/internal/ops"
)

func newCancel(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "cancel OPERATION", Short: "Take back what an operation did, and end it",
		Long: `Ask an operation to take back what it did and to end. The command returns when the
request is recorded; ` + "`ebb watch`" + ` shows how it ends.

A node that is being drained is uncordoned. A script that runs on a node is seen
through to its end, and so is a scale-down that has begun to remove nodes.
A cluster that does not answer is waited for, for a day; cancelling a second time ends
that: what cannot be put back now is left, and named. Cancelling an operation that is
over changes nothing.`,
		Args: arguments(1, 1), ValidArgsFunction: a.completeOperations,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, id := cmd.Context(), args[0]
			operations, err := a.connect(ctx)
			if err != nil {
				return err
			}
			op, err := operations.Get(ctx, id)
			if err != nil {
				return err
			}
			if op.Cancelling {
				return a.steer(ctx, operations, steered{Operation: id, Action: ops.GiveUp})
			}
			if err := operations.Cancel(ctx, id); err != nil {
				return err
			}
			if op, err = operations.Get(ctx, id); err != nil {
				return err
			}
			if a.json() {
				return json.NewEncoder(a.out).Encode(op)
			}
			if op.State.Over() {
				_, err = fmt.Fprintf(a.out, "%s is over: %s\n", id, verdict(op))
				return err
			}
			_, err = fmt.Fprintf(a.out, "%s was asked to take back what it did; see how it ends with `ebb watch %s`\n", id, id)
			return err
		},
	}
}
