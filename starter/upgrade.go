package main

import (
	"github.com/spf13/cobra"

	"ebb/internal/operation"
	kubeversion "ebb/internal/version"
)

func newUpgrade(a *app) *cobra.Command {
	o := newOperate(a, operation.KindUpgrade)
	var route routeFlags
	cmd := &cobra.Command{
		Use: "upgrade CLUSTER --to VERSION", Short: "Bring every node of a cluster to a Kubernetes version",
		Long: `Bring every node of a cluster to a Kubernetes version, one minor at a time:
control planes first, then workers. Each node is drained, upgraded, uncordoned and
found Ready before the next.

Every node is checked before the first is touched; all faults come in one report.
When a node fails, it is uncordoned, no other is started, and the cluster goes to
state Alert. Find the cause and run the same command again: nodes that are done
are skipped. Cancelling takes back the cordon of a node that is being drained; a
script that runs is seen through to its end.

` + aboutExitCodes,
		Example: "  ebb upgrade prod --to 1.37.2\n  ebb upgrade prod --to 1.37.2 --detach --id upgrade-prod-monday",
		Args:    arguments(1, 1), ValidArgsFunction: a.completeClusters,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := route.check(cmd); err != nil {
				return err
			}
			o.request.Cluster, o.request.Route = args[0], route.route()
			return o.start(cmd.Context())
		},
	}
	route.flags(cmd)
	o.flags(cmd)
	return cmd
}

// routeFlags say where an upgrade goes.
type routeFlags struct {
	target string
	hops   []string
}

func (r *routeFlags) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&r.target, "to", "", "Kubernetes version, for example 1.37.2 (required)")
	cmd.Flags().StringSliceVar(&r.hops, "hops", nil, "versions to stop at on the way to --to, one minor apart, comma-separated")
}

func (r *routeFlags) check(cmd *cobra.Command) error {
	if r.target == "" {
		return usage(cmd, "say which version: --to VERSION")
	}
	return nil
}

func (r *routeFlags) route() kubeversion.Route {
	return kubeversion.Route{Hops: kubeversion.Each(r.hops), Target: kubeversion.Of(r.target)}
}
