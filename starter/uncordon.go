package main

import (
	"github.com/spf13/cobra"

	"ebb/internal/operation"
)

func newUncordon(a *app) *cobra.Command {
	o := newOperate(a, operation.KindUncordon)
	cmd := &cobra.Command{
		Use: "uncordon CLUSTER NODE...", Short: "Give back nodes that a drain has left cordoned",
		Long: `Make nodes schedulable that operations have left cordoned, as ` + "`ebb drain`" + ` does. It
takes the cluster like any other operation, so that no cordon that is still needed
is taken off. A node that is schedulable already is left as it is. A cordon of
somebody else is refused: ask them, then use kubectl uncordon.

` + aboutExitCodes,
		Example: "  ebb uncordon prod w3\n  ebb uncordon prod w3 w4 -o json",
		Args:    arguments(2, -1), ValidArgsFunction: a.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.request.Cluster, o.request.Nodes = args[0], args[1:]
			return o.start(cmd.Context())
		},
	}
	o.flags(cmd)
	return cmd
}
