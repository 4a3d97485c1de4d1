package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"ebb/internal/cluster"
	"ebb/internal/inspect"
	"ebb/internal/policy"
	"ebb/internal/tunnel/dialer"
)

const (
	checkTimeout  = 2 * time.Minute // for one cluster, all of its nodes included
	checkParallel = 10              // nodes looked at over SSH at once
)

func newClusters(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "clusters", Short: "List, check or clear the clusters",
		Args: noSuchCommand, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(&cobra.Command{
		Use: "list", Short: "List the clusters with their states", Aliases: []string{"ls"},
		Long: `List every cluster that is configured with its state and the operation that has it,
as ` + "`ebb status`" + ` without an argument does. With any that does not answer, the exit
code is 1.`,
		Args: arguments(0, 0), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.statusAll(cmd.Context()) },
	}, &cobra.Command{
		Annotations: map[string]string{hereOnly: "yes"},
		Use:         "check [CLUSTER]", Short: "Check that Ebb can work with the clusters in ebb.yaml",
		Long: `Check ebb.yaml and each cluster in it, or one: that agents of its tunnel, if it has
one, are connected, that its API server answers, that Ebb is allowed what it needs,
and that every node is reached over SSH, with a host key that is known, is the
machine that the cluster means, and has what an upgrade needs. It runs here what
the worker will do, so run it where the worker runs. Nothing is changed. Every
fault is reported; with any, the exit code is 1.`,
		Args: arguments(0, 1), ValidArgsFunction: a.completeClusters,
		RunE: func(cmd *cobra.Command, args []string) error { return a.check(cmd.Context(), args) },
	}, newClear(a))
	return cmd
}

// report is what a check found out about one cluster.
type report struct {
	Cluster string   `json:"cluster"`
	Good    []string `json:"good"`
	Faults  []string `json:"faults"`
}

func (r *report) good(format string, args ...any) {
	r.Good = append(r.Good, fmt.Sprintf(format, args...))
}

func (a *app) check(ctx context.Context, only []string) error {
	registry, names, err := a.registry()
	if err != nil {
		return err
	}
	if len(only) == 1 && !slices.Contains(names, only[0]) {
		return fmt.Errorf("there is no cluster %q in ebb.yaml, only %s", only[0], strings.Join(names, ", "))
	}
	if len(only) == 1 {
		names = only
	}
	faults, sick := 0, 0
	for _, name := range names {
		r := a.checkCluster(ctx, registry, name)
		if err := errors.Join(ctx.Err(), a.printReport(r)); err != nil {
			return err
		}
		faults += len(r.Faults)
		if len(r.Faults) > 0 {
			sick++
		}
	}
	if faults > 0 {
		return fmt.Errorf("%s in %d of %s", count(faults, "fault"), sick, count(len(names), "cluster"))
	}
	return nil
}

func (a *app) printReport(r report) error {
	if a.json() {
		return json.NewEncoder(a.out).Encode(r)
	}
	lines := []string{"cluster " + r.Cluster}
	for _, text := range r.Good {
		lines = append(lines, "  ✓ "+text)
	}
	for _, text := range r.Faults {
		lines = append(lines, "  ✗ "+strings.ReplaceAll(text, "\n", "\n    "))
	}
	_, err := fmt.Fprintln(a.out, strings.Join(lines, "\n"))
	return err
}

// checkCluster goes on after a fault as far as that makes sense.
func (a *app) checkCluster(ctx context.Context, registry *cluster.Registry, name string) report {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	r := report{Cluster: name, Good: []string{}, Faults: []string{}}
	fault := func(err error) report {
		r.Faults = append(r.Faults, err.Error())
		return r
	}
	c, err := registry.Get(ctx, name)
	if err != nil {
		return fault(err)
	}
	checkTunnel(ctx, c, &r)
	version, err := c.Client.Discovery().ServerVersion()
	if err != nil {
		return fault(fmt.Errorf("the API server does not answer: %w", err))
	}
	r.good("API server %s", version.GitVersion)
	asked, denied, err := checkPermissions(ctx, c.Client)
	switch {
	case err != nil:
		return fault(err)
	case len(denied) == 0:
		r.good("all %d permissions that Ebb needs", asked)
	}
	r.Faults = append(r.Faults, denied...)
	a.checkNodes(ctx, c, &r)
	return r
}

// checkTunnel looks at the agents through which the cluster is reached, if it is.
func checkTunnel(ctx context.Context, c *cluster.Cluster, r *report) {
	settings, err := c.Settings()
	if err == nil && settings.Tunnel.Address == "" {
		return
	}
	var agents []dialer.Agent
	if err == nil {
		agents, err = cluster.Tunnel(settings).Agents(ctx)
	}
	if err != nil {
		r.Faults = append(r.Faults, fmt.Sprintf("the tunnel at %s: %v", settings.Tunnel.Address, err))
		return
	}
	told, fault := describeAgents(agents)
	if fault != "" {
		r.Faults = append(r.Faults, fmt.Sprintf("the tunnel at %s: %s", settings.Tunnel.Address, fault))
		return
	}
	r.good("tunnel: %s", told)
}

// describeAgents tells which agents there are and which of them drain. That none takes new
// dials willingly is a fault.
func describeAgents(agents []dialer.Agent) (told, fault string) {
	if len(agents) == 0 {
		return "", "no agent is connected: see the log of ebb-agent"
	}
	var names []string
	ready := 0
	for _, a := range agents {
		name := a.ID
		if a.State == dialer.Ready {
			ready++
		} else {
			name += " (" + a.State + ")"
		}
		names = append(names, name)
	}
	told = count(len(agents), "agent") + ": " + strings.Join(names, ", ")
	if ready == 0 {
		return "", "every agent drains or is on a cordoned node: " + told
	}
	return told, ""
}

// checkNodes makes the checks that an upgrade makes before it starts.
func (a *app) checkNodes(ctx context.Context, c *cluster.Cluster, r *report) {
	nodes, err := c.Nodes(ctx)
	if err != nil {
		r.Faults = append(r.Faults, err.Error())
		return
	}
	controlPlane, err := inspect.ControlPlane(ctx, c, "", "")
	r.Faults = append(r.Faults, orError(controlPlane, err)...)
	etcd, err := inspect.Etcd(ctx, c, "", a.log)
	r.Faults = append(r.Faults, orError(etcd, err)...)
	faults := make([][]string, len(nodes))
	var group errgroup.Group
	group.SetLimit(checkParallel)
	for i, node := range nodes {
		group.Go(func() error {
			found, err := inspect.Preflight(ctx, c, node, a.log)
			faults[i] = orError(found, err)
			return nil
		})
	}
	_ = group.Wait() // what went wrong is in faults
	var fit []string
	for i, node := range nodes {
		if len(faults[i]) == 0 {
			fit = append(fit, node.Name)
		}
		r.Faults = append(r.Faults, faults[i]...)
	}
	controlPlanes, workers := policy.UpgradeOrder(nodes)
	r.good("%s: %s, %s", count(len(nodes), "node"), count(len(controlPlanes), "control plane"), count(len(workers), "worker"))
	if len(fit) > 0 {
		r.good("reached over SSH, the right machine, fit for an upgrade: %s", strings.Join(fit, ", "))
	}
}

// orError returns the faults of what was looked at, or why it could not be.
func orError(faults []string, err error) []string {
	if err != nil {
		return []string{err.Error()}
	}
	return faults
}
