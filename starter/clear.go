package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"ebb/internal/clusterstate"
	"ebb/internal/engine"
	"ebb/internal/lease"
	"ebb/internal/workers"
)

// clearing is what ebb clusters clear was asked to do.
type clearing struct {
	*app
	reason string
	alert  bool
	gone   string // the operation on another engine that is said to be gone
}

func newClear(a *app) *cobra.Command {
	c := &clearing{app: a}
	cmd := &cobra.Command{
		Annotations: map[string]string{hereOnly: "yes"},
		Use:         "clear CLUSTER --reason TEXT", Short: "Set a cluster Running that only its record keeps from it",
		Long: `Set a cluster Running, or with --alert into Alert, when its record on the Lease is
wrong and no operation can put it right: an upgrade that can never be retried, an
engine that is gone. Who did it, when and why is kept on the Lease, and ` + "`ebb status`" + `
shows it. It is refused while an operation that runs has the cluster: cancel that.
An operation on an engine that is gone cannot be asked; --holder-is-gone says that
it is. Nodes are not touched; cordons of an operation that is gone are taken back by
the next one. Run it where the worker runs.`,
		Example: "  ebb clusters clear prod --reason 'upgraded by hand, all nodes looked at'",
		Args:    arguments(1, 1), ValidArgsFunction: a.completeClusters,
		RunE: func(cmd *cobra.Command, args []string) error {
			if strings.TrimSpace(c.reason) == "" {
				return usage(cmd, "say why, with --reason TEXT")
			}
			return c.run(cmd.Context(), args[0])
		},
	}
	cmd.Flags().StringVar(&c.reason, "reason", "", "why, for those who look at the cluster later (required)")
	cmd.Flags().BoolVar(&c.alert, "alert", false, "into Alert, where the reconciler looks at it and an upgrade can be retried")
	cmd.Flags().StringVar(&c.gone, "holder-is-gone", "", "the operation on another engine that is gone for good")
	return cmd
}

func (c *clearing) run(ctx context.Context, name string) error {
	registry, _, err := c.registry()
	if err != nil {
		return err
	}
	cluster, err := registry.Get(ctx, name)
	if err != nil {
		return err
	}
	connected, namespace, err := engine.Connect(ctx, c.log)
	if err != nil {
		return err
	}
	defer connected.Close()
	known := workers.NewEngine(connected, namespace)
	identity, err := known.Identity(ctx)
	if err != nil {
		return err
	}
	to := clusterstate.Running
	if c.alert {
		to = clusterstate.Alert
	}
	record, err := lease.NewStore(cluster.Client, time.Now).Clear(ctx, lease.Clearance{
		To: to, By: person(), Reason: c.reason,
		Dead: func(ctx context.Context, r clusterstate.Record) (bool, error) {
			if r.Engine == identity {
				return known.Closed(ctx, r.Holder)
			}
			return c.gone == r.Holder, c.elsewhere(r)
		},
	})
	if err != nil {
		return fmt.Errorf("cluster %s: %w", name, err)
	}
	if err := c.print(name, record); err != nil || !c.alert {
		return err
	}
	if err := known.Reconcile(ctx, name, true); err != nil {
		return fmt.Errorf("the cluster is in Alert, and its reconciler could not be resumed: %w", err)
	}
	return nil
}

// elsewhere is the refusal to clear a cluster that is held from another engine, unless the
// holder is said to be gone.
func (c *clearing) elsewhere(r clusterstate.Record) error {
	if c.gone == r.Holder {
		return nil
	}
	return fmt.Errorf("%w: %s on another Temporal engine (%s), which cannot be asked; if it is gone for good, say so with --holder-is-gone %s",
		lease.ErrHeld, r.Holder, r.Engine, r.Holder)
}

func (c *clearing) print(name string, r clusterstate.Record) error {
	if c.json() {
		return json.NewEncoder(c.out).Encode(r)
	}
	_, err := fmt.Fprintf(c.out, "cluster %s: %s\n  cleared %s\n", name, r.State, r.Cleared)
	return err
}

// person is who runs this command, as far as this machine knows.
func person() string {
	name, host := "somebody", "an unknown host"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return name + "@" + host
}
