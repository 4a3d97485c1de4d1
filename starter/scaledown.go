package main

import (
	"github.com/spf13/cobra"

	"ebb/internal/operation"
)

func newScaleDown(a *app) *cobra.Command {
	o := newOperate(a, operation.KindScaleDown)
	cmd := &cobra.Command{
		Use: "scale-down CLUSTER (--nodes NAME,... | --count N)", Short: "Drain nodes, remove them and destroy their machines",
		Long: `Drain nodes, remove them from the cluster and destroy their machines through the
infrastructure provider in ebb.yaml. By count only workers go, the newest first; a
control plane goes only by name.

All of them are cordoned, then drained. Until the last one is drained, a failure or
a cancellation takes everything back: nothing is removed, every cordon of this
operation is taken off, the cluster is as it was. After that it goes through.

` + aboutExitCodes,
		Example: "  ebb scale-down prod --count 2\n  ebb scale-down prod --nodes w7,w8",
		Args:    arguments(1, 1), ValidArgsFunction: a.completeClusters,
		RunE: func(cmd *cobra.Command, args []string) error {
			named, counted := cmd.Flags().Changed("nodes"), cmd.Flags().Changed("count")
			if named == counted {
				return usage(cmd, "say which nodes: either --nodes NAME,... or --count N")
			}
			o.request.Cluster = args[0]
			return o.start(cmd.Context())
		},
	}
	cmd.Flags().StringSliceVar(&o.request.Nodes, "nodes", nil, "names of the nodes to remove, comma-separated")
	cmd.Flags().IntVar(&o.request.Count, "count", 0, "how many workers to remove, the newest first")
	o.flags(cmd)
	return cmd
}
