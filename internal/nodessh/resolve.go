package nodessh

import (
	"cmp"
	"fmt"
	"net"
	"strconv"
	"strings"

	"ebb/internal/config"
)

// NodeAddress is what the Kubernetes API says about a node's address.
type NodeAddress struct {
	Name        string
	InternalIPs []string // status.addresses of type InternalIP, in their order
	Index       int      // position in the cluster's list of nodes, for the fallback port only
}

// Resolve returns where to dial a node: its InternalIP, or the public port of its
// active port-forwarding rule. How to dial, if not directly, is for the caller. The warning is not empty when there was no such rule
// and the port was computed from basePort. An error needs another configuration.
func Resolve(c config.Cluster, node NodeAddress) (target Target, warning string, err error) {
	target = Target{
		Node:            node.Name,
		User:            cmp.Or(c.SSH.User, defaultUser),
		IdentityFile:    c.SSH.IdentityFile,
		CertificateFile: c.SSH.CertificateFile,
		PassphraseFile:  c.SSH.PassphraseFile,
		Agent:           c.SSH.Agent,
		KnownHosts:      c.SSH.KnownHosts,
		AcceptNew:       c.SSH.AcceptNew,
		Jump:            c.SSH.Jump,
		Sudo:            c.SSH.Sudo,
		ConnectTimeout:  c.SSH.ConnectTimeout.D(),
		KeepAlive:       c.SSH.KeepAlive.D(),
	}
	switch c.Addressing.Mode {
	case config.AddressNode, config.AddressTunnel, "":
		if len(node.InternalIPs) == 0 {
			return Target{}, "", fmt.Errorf("node %s has no InternalIP: set addressing.mode of cluster %s to forwarded, with a rule for it", node.Name, c.Name)
		}
		target.Address = joinHostPort(node.InternalIPs[0], cmp.Or(c.SSH.Port, defaultPort))
		return target, "", nil
	case config.AddressForwarded:
		port, warning, err := forwardedPort(c, node)
		if err != nil {
			return Target{}, "", err
		}
		target.Address = joinHostPort(c.Addressing.PublicAddress, port)
		return target, warning, nil
	default:
		return Target{}, "", fmt.Errorf("cluster %s: addressing.mode %q is unknown", c.Name, c.Addressing.Mode)
	}
}

// forwardedPort returns the public port of the node's active forwarding rule. A rule in
// another state, such as one that is being revoked, may lead elsewhere and is ignored.
func forwardedPort(c config.Cluster, node NodeAddress) (port int, warning string, err error) {
	if c.Addressing.PublicAddress == "" {
		return 0, "", fmt.Errorf("cluster %s: addressing.publicAddress is needed to reach node %s", c.Name, node.Name)
	}
	nodeByPort := make(map[int]string, len(c.Addressing.Rules))
	for _, rule := range c.Addressing.Rules {
		if rule.State != "" && !strings.EqualFold(rule.State, "Active") {
			continue
		}
		nodeByPort[rule.Port] = rule.Node
		if rule.Node != node.Name {
			continue
		}
		if port != 0 && port != rule.Port {
			return 0, "", fmt.Errorf("cluster %s: node %s has two active forwarding rules (ports %d and %d): remove the wrong one", c.Name, node.Name, port, rule.Port)
		}
		port = rule.Port
	}
	if port != 0 {
		return port, "", nil
	}
	port = c.Addressing.BasePort + node.Index
	if c.Addressing.BasePort == 0 || port > 65535 {
		return 0, "", fmt.Errorf("cluster %s: node %s has no active forwarding rule and addressing.basePort gives no port: add a rule", c.Name, node.Name)
	}
	if other, taken := nodeByPort[port]; taken {
		return 0, "", fmt.Errorf("cluster %s: node %s has no active forwarding rule, and the fallback port %d is forwarded to %s: add a rule", c.Name, node.Name, port, other)
	}
	return port, fmt.Sprintf("node %s has no active forwarding rule; trying port %d (basePort %d + index %d)",
		node.Name, port, c.Addressing.BasePort, node.Index), nil
}

func joinHostPort(host string, port int) string {
	return net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(port))
}
