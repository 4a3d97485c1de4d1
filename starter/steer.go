package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"ebb/internal/ops"
)

// steered is what a command that steers an operation prints as JSON.
type steered struct {
	Operation string     `json:"operation"`
	Action    ops.Action `json:"action"`
	Node      string     `json:"node,omitempty"`
	Answer    string     `json:"answer"`
}

func newPause(a *app) *cobra.Command {
	return a.steering(ops.Pause, &cobra.Command{
		Use: "pause OPERATION", Short: "Start no further node of an operation",
		Long: `Have an operation start no further node. Nodes that are under way are seen through;
the cluster stays taken. The time until ` + "`ebb resume`" + ` does not count against the
operation's deadline. A paused operation can be cancelled.`,
		Args: arguments(1, 1),
	})
}

func newResume(a *app) *cobra.Command {
	return a.steering(ops.Resume, &cobra.Command{
		Use: "resume OPERATION", Short: "Let a paused operation go on", Args: arguments(1, 1),
	})
}

func newSkipNode(a *app) *cobra.Command {
	return a.steering(ops.SkipNode, &cobra.Command{
		Use: "skip-node OPERATION NODE", Short: "Leave a worker out of a running upgrade",
		Long: `Leave a worker out of a running upgrade, for example because it cannot be drained.
One that is being drained is uncordoned; a script that runs is seen through. The
upgrade goes on with the others and ends with the cluster in Alert, as not every
node is at the target: start it again for the one left out, or label that node
ebb/manual-upgrade=true first.`,
		Args: arguments(2, 2),
	})
}

func newRetry(a *app) *cobra.Command {
	return a.steering(ops.RetryNow, &cobra.Command{
		Use: "retry OPERATION [NODE]", Short: "Make the next attempt now instead of waiting for it",
		Long: `End the wait for the next attempt at a node: a drain that has failed, or a script
that asked to be run again. Without a node it ends every wait of the operation.
An upgrade that has ended in Alert is not retried with this but by starting it
again: it goes on where it stopped.`,
		Args: arguments(1, 2),
	})
}

// steering makes a command that sends an action to an operation.
func (a *app) steering(action ops.Action, cmd *cobra.Command) *cobra.Command {
	cmd.ValidArgsFunction = a.completeOperations
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s := steered{Operation: args[0], Action: action}
		if len(args) > 1 {
			s.Node = args[1]
		}
		operations, err := a.connect(cmd.Context())
		if err != nil {
			return err
		}
		return a.steer(cmd.Context(), operations, s)
	}
	return cmd
}

// steer sends an action to an operation and prints the answer.
func (a *app) steer(ctx context.Context, operations ops.Client, s steered) (err error) {
	if s.Answer, err = operations.Steer(ctx, s.Operation, ops.Steering{Action: s.Action, Node: s.Node}); err != nil {
		return err
	}
	if a.json() {
		return json.NewEncoder(a.out).Encode(s)
	}
	_, err = fmt.Fprintf(a.out, "%s: %s\n", s.Operation, s.Answer)
	return err
}
