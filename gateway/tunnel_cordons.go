package main

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"go.uber.org/zap"
	core "k8s.io/api/core/v1"

	"ebb/internal/cluster"
	"ebb/internal/config"
	"ebb/internal/mirror"
	"ebb/internal/tunnel/server"
	"ebb/internal/wait"
)

// retryInterval is how often a cluster without a usable kubeconfig is tried again.
const retryInterval = 5 * time.Second

// cordons knows which nodes of clusters are cordoned by an operation, as far as their API
// servers have told. It is asked for each dial, so it keeps the answers ready.
type cordons struct {
	registry *cluster.Registry
	log      *zap.Logger

	mu    sync.Mutex
	nodes map[string]map[string][]netip.Addr // cluster -> cordoned node -> its addresses
}

func newCordons(registry *cluster.Registry, log *zap.Logger) *cordons {
	return &cordons{registry: registry, log: log, nodes: map[string]map[string][]netip.Addr{}}
}

// watch follows the nodes of the clusters until ctx ends.
func (c *cordons) watch(ctx context.Context, clusters map[string]config.ClusterTunnel) {
	for name := range clusters {
		go c.follow(ctx, name)
	}
}

func (c *cordons) follow(ctx context.Context, name string) {
	var found *cluster.Cluster
	err := wait.Poll(ctx, retryInterval, func() (bool, error) {
		var err error
		if found, err = c.registry.Get(ctx, name); err != nil {
			c.log.Warn("tunnel: whether nodes are cordoned is not known", zap.String("cluster", name), zap.Error(err))
		}
		return err == nil, nil
	})
	if err != nil {
		return // ctx has ended
	}
	nodes := found.Client.CoreV1().Nodes()
	var m *mirror.Mirror[core.Node]
	m = mirror.New(found.Client, mirror.Options[core.Node]{Resource: "nodes", Transform: keepCordon, OnChange: func(n *core.Node) {
		if n == nil {
			for _, n := range m.List() {
				c.set(name, n)
			}
		} else if now := m.Get(n.Name); now != nil { // a node that is gone keeps its cordon: its agent may still be there
			c.set(name, now)
		}
	}}, nodes.List, nodes.Watch)
	m.Run(ctx)
}

// keepCordon drops what is not looked at, and keeps spec.unschedulable if an operation has set it.
func keepCordon(n *core.Node) {
	n.Spec = core.NodeSpec{Unschedulable: cluster.CordonedBy(n) != ""}
	n.ManagedFields, n.Labels, n.Annotations = nil, nil, nil
	n.Status = core.NodeStatus{Addresses: n.Status.Addresses}
}

func (c *cordons) set(name string, n *core.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nodes[name] == nil {
		c.nodes[name] = map[string][]netip.Addr{}
	}
	if !n.Spec.Unschedulable {
		delete(c.nodes[name], n.Name)
		return
	}
	addresses := []netip.Addr{}
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == core.NodeInternalIP {
			addresses = append(addresses, ip)
		}
	}
	c.nodes[name][n.Name] = addresses
}

// has reports whether an agent is on a cordoned node: it has the node's name as its ID, or
// offers the node by name or by address.
func (c *cordons) has(name string, a server.Agent) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for node, addresses := range c.nodes[name] {
		if a.IsOn(node, addresses) {
			return true
		}
	}
	return false
}
