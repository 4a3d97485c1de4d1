package main

import (
	"github.com/spf13/cobra"

	"ebb/internal/operation"
)

func newDrain(a *app) *cobra.Command {
	o := newOperate(a, operation.KindDrain)
	cmd := &cobra.Command{
		Use: "drain CLUSTER NODE...", Short: "Cordon nodes and move their pods elsewhere",
		Long: `Cordon nodes and evict their pods, under their disruption budgets. The nodes stay
cordoned; ` + "`ebb uncordon`" + ` gives them back. If one of them cannot be drained, or on a
cancellation, every node that was cordoned for it is uncordoned again.

` + aboutExitCodes,
		Example: "  ebb drain prod w3\n  ebb drain prod w3 w4 -o json",
		Args:    arguments(2, -1), ValidArgsFunction: a.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.request.Cluster, o.request.Nodes = args[0], args[1:]
			return o.start(cmd.Context())
		},
	}
	o.flags(cmd)
	return cmd
}
