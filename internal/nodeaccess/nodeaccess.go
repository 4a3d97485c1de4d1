// Package nodeaccess reaches the nodes of managed clusters over SSH, as ebb.yaml
// and the infrastructure say.
package nodeaccess

import (
	"context"
	"errors"
	"fmt"
	"net"

	"go.uber.org/zap"

	"ebb/internal/cluster"
	"ebb/internal/config"
	"ebb/internal/infra"
	"ebb/internal/nodessh"
	"ebb/internal/policy"
	"ebb/internal/tunnel/dialer"
)

// Resolve returns where and how a node answers SSH. An address that had to be
// guessed is a warning in log.
func Resolve(ctx context.Context, c *cluster.Cluster, n policy.Node, log *zap.Logger) (nodessh.Target, error) {
	settings, err := c.Settings()
	if err != nil {
		return nodessh.Target{}, err
	}
	if settings.Addressing.Mode == config.AddressForwarded && len(settings.Addressing.Rules) == 0 {
		settings.Addressing.Rules, err = forwardingRules(ctx, c, settings, n)
		if err != nil {
			return nodessh.Target{}, err
		}
	}
	target, warning, err := nodessh.Resolve(settings, nodessh.NodeAddress{Name: n.Name, InternalIPs: n.Addresses, Index: n.Index})
	if err != nil {
		return nodessh.Target{}, &nodessh.AddressError{Node: n.Name, Err: err}
	}
	if warning != "" {
		log.Warn(warning, zap.String("cluster", c.Name), zap.String("node", n.Name))
	}
	if settings.Addressing.Mode == config.AddressTunnel {
		target.Dial = throughTunnel(settings, n.Name)
	}
	return target, nil
}

// throughTunnel dials a node over the agents of its cluster. A gateway that does not allow it
// will not the next time.
func throughTunnel(settings config.Cluster, node string) func(ctx context.Context, network, address string) (net.Conn, error) {
	through := cluster.Tunnel(settings)
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := through.DialContext(ctx, network, address)
		var refused *dialer.RefusedError
		if errors.As(err, &refused) {
			return nil, &nodessh.AddressError{Node: node, Err: err}
		}
		return c, err
	}
}

// forwardingRules asks the infrastructure which port leads to a node. They are
// asked for anew each time: a port that led to this node a minute ago may lead
// to another one now. None, too, when the provider knows of no rules.
func forwardingRules(ctx context.Context, c *cluster.Cluster, settings config.Cluster, n policy.Node) ([]config.ForwardingRule, error) {
	provider, err := c.Infra()
	if err != nil {
		return nil, err
	}
	forwarder, ok := provider.(infra.ForwardingRuleLister)
	if !ok {
		return nil, nil
	}
	rules, err := forwarder.ForwardingRules(ctx, infra.ForwardingRuleQuery{
		PublicAddress: settings.Addressing.PublicAddress, Port: settings.SSH.Port, Machine: infra.MachineOf(c.Name, n),
	})
	if err != nil {
		return nil, fmt.Errorf("find the way to node %s: %w", n.Name, err)
	}
	return rules, nil
}

// Dial connects to a node. The caller closes the connection.
func Dial(ctx context.Context, c *cluster.Cluster, n policy.Node, log *zap.Logger) (*nodessh.Client, error) {
	target, err := Resolve(ctx, c, n, log)
	if err != nil {
		return nil, err
	}
	client, err := nodessh.Dial(ctx, target)
	if err != nil {
		return nil, fmt.Errorf("node %s at %s: %w", n.Name, target.Address, err)
	}
	return client, nil
}

// Exec runs a short shell script on a node, as root where ssh.sudo says so, and
// returns what it printed on both streams. A script that fails is not an error:
// its exit code says so.
func Exec(ctx context.Context, c *cluster.Cluster, n policy.Node, log *zap.Logger, script string) (output string, exit int, err error) {
	client, err := Dial(ctx, c, n, log)
	if err != nil {
		return "", 0, err
	}
	stdout, stderr, exit, err := client.Exec(ctx, script)
	if closeErr := client.Close(); err == nil && closeErr != nil {
		log.Debug("close the SSH connection", zap.String("node", n.Name), zap.Error(closeErr))
	}
	if err != nil {
		return "", 0, fmt.Errorf("node %s: %w", n.Name, err)
	}
	return stdout + stderr, exit, nil
}
