package activities

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"ebb/internal/cluster"
	"ebb/internal/config"
	"ebb/internal/infra"
	"ebb/internal/nodessh"
	"ebb/internal/plan"
)

// reach resolves where and how a node answers SSH.
func (a *Activities) reach(ctx context.Context, clusterName string, n plan.Node) (nodessh.Target, config.Cluster, error) {
	c, err := a.Clusters.Get(ctx, clusterName)
	if err != nil {
		return nodessh.Target{}, config.Cluster{}, permanent(TypeConfig, err)
	}
	settings, err := c.Settings()
	if err != nil {
		return nodessh.Target{}, config.Cluster{}, permanent(TypeConfig, err)
	}
	if settings.Addressing.Mode == config.AddressForwarded && len(settings.Addressing.Rules) == 0 {
		settings.Addressing.Rules, err = forwardingRules(ctx, c, settings, n)
		if err != nil {
			return nodessh.Target{}, config.Cluster{}, err
		}
	}
	target, warning, err := nodessh.Resolve(settings, nodessh.NodeAddress{Name: n.Name, InternalIPs: n.Addresses, Index: n.Index})
	if err != nil {
		return nodessh.Target{}, config.Cluster{}, permanent(TypeNodeAccess, err)
	}
	if warning != "" {
		a.Log.Warn(warning, zap.String("cluster", clusterName), zap.String("node", n.Name))
	}
	return target, settings, nil
}

// forwardingRules asks the infrastructure which port leads to a node. They are
// asked for anew each time: a port that led to this node a minute ago may lead
// to another one now. None, too, when the provider knows of no rules.
func forwardingRules(ctx context.Context, c *cluster.Cluster, settings config.Cluster, n plan.Node) ([]config.ForwardingRule, error) {
	provider, err := c.Infra()
	if err != nil {
		return nil, permanent(TypeConfig, err)
	}
	forwarder, ok := provider.(infra.Forwarder)
	if !ok {
		return nil, nil
	}
	rules, err := forwarder.Rules(ctx, infra.RuleQuery{
		PublicAddress: settings.Addressing.PublicAddress, Port: settings.SSH.Port, Machine: machineOf(c.Name, n),
	})
	if err != nil {
		return nil, fmt.Errorf("find the way to node %s: %w", n.Name, err)
	}
	return rules, nil
}

// onNode runs a short command on a node and returns what it printed on both
// streams. A command that fails is not an error: its exit code says so.
func (a *Activities) onNode(ctx context.Context, clusterName string, n plan.Node, script string) (output string, exit int, err error) {
	target, _, err := a.reach(ctx, clusterName, n)
	if err != nil {
		return "", 0, err
	}
	client, err := nodessh.Dial(ctx, target)
	if err != nil {
		return "", 0, fmt.Errorf("node %s at %s: %w", n.Name, target.Address, err)
	}
	stdout, stderr, exit, err := client.Exec(ctx, script)
	if closeErr := client.Close(); err == nil && closeErr != nil {
		a.Log.Debug("close the SSH connection", zap.String("node", n.Name), zap.Error(closeErr))
	}
	if err != nil {
		return "", 0, fmt.Errorf("node %s at %s: %w", n.Name, target.Address, err)
	}
	return stdout + stderr, exit, nil
}
