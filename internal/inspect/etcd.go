package inspect

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"

	"go.uber.org/zap"

	"ebb/internal/cluster"
	"ebb/internal/etcd"
	"ebb/internal/nodeaccess"
	"ebb/internal/nodessh"
	"ebb/internal/policy"
	"ebb/internal/tail"
)

// etcdScript prints where the etcd of a kubeadm control plane listens and the
// certificates of its health check, in base64; nothing when there is no etcd
// here. The directory is read off the manifest, as kubeadm lets it be chosen. A node that
// keeps its manifests elsewhere has EBB_KUBERNETES_DIR in its environment.
const etcdScript = `
manifest=${EBB_KUBERNETES_DIR:-/etc/kubernetes}/manifests/etcd.yaml
[ -f "$manifest" ] || exit 0
pki=$(dirname "$(sed -n 's/.*--trusted-ca-file=//p' "$manifest" | head -n 1)")
echo "address=$(sed -n 's/.*--advertise-client-urls=https:\/\///p' "$manifest" | head -n 1 | cut -d , -f 1)"
echo "ca=$(base64 "$pki/ca.crt" | tr -d '\n')"
echo "certificate=$(base64 "$pki/healthcheck-client.crt" | tr -d '\n')"
echo "key=$(base64 "$pki/healthcheck-client.key" | tr -d '\n')"
`

// Etcd returns what is wrong with a stacked etcd: its members are not the control
// planes, or one that is not except (empty = none) is not healthy. It asks over SSH
// to a control plane, from where it connects to the members with the certificate of
// their own health check. An etcd that runs elsewhere is left to ControlPlane, which
// has the API server ask for it.
func Etcd(ctx context.Context, c *cluster.Cluster, except string, log *zap.Logger) (faults []string, err error) {
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	var via *policy.Node
	for i, n := range nodes {
		if n.Role == policy.Worker {
			continue
		}
		names = append(names, n.Name)
		if n.Ready && (via == nil || via.Name == except) { // another than the one that is about to go, if there is one
			via = &nodes[i]
		}
	}
	if via == nil || len(names) < 2 {
		return nil, nil // there is no other, or ControlPlane says that it is not Ready
	}
	members, stacked, err := etcdMembers(ctx, c, *via, log)
	switch {
	case nodessh.Permanent(err):
		return []string{err.Error()}, nil
	case err != nil || !stacked:
		return nil, err
	}
	return etcd.CheckMembers(members, names, except), nil
}

// etcdMembers asks through one control plane; stacked is false where it has no etcd.
func etcdMembers(ctx context.Context, c *cluster.Cluster, via policy.Node, log *zap.Logger) (members []etcd.Member, stacked bool, err error) {
	stacked, err = ThroughEtcd(ctx, c, via, log, func(access etcd.ClientConfig) (err error) {
		members, err = etcd.ListMembers(ctx, access)
		return err
	})
	return members, stacked, err
}

// ThroughEtcd calls do with the way to the etcd on one control plane; stacked is false, and
// do is not called, where there is none. The way ends with the call.
func ThroughEtcd(ctx context.Context, c *cluster.Cluster, via policy.Node, log *zap.Logger, do func(etcd.ClientConfig) error) (stacked bool, err error) {
	client, err := nodeaccess.Dial(ctx, c, via, log)
	if err != nil {
		return false, err
	}
	defer func() { _ = client.Close() }() // what was written was answered
	output, complaint, exit, err := client.Exec(ctx, etcdScript)
	if err != nil {
		return false, fmt.Errorf("node %s: %w", via.Name, err)
	}
	access, err := etcdAccess(output)
	if exit != 0 || err != nil {
		return false, fmt.Errorf("node %s: the certificates of etcd cannot be read (exit %d): %s", via.Name, exit, tail.Of(strings.TrimSpace(complaint), 300))
	}
	if access.Address == "" {
		return false, nil
	}
	access.Dial = client.Dial
	if err := do(access); err != nil {
		return true, fmt.Errorf("through node %s: %w", via.Name, err)
	}
	return true, nil
}

// etcdAccess reads what etcdScript printed. Its error never quotes it.
func etcdAccess(output string) (a etcd.ClientConfig, err error) {
	into := map[string]*[]byte{"ca": &a.CA, "certificate": &a.Certificate, "key": &a.Key}
	for line := range strings.Lines(output) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if key == "address" {
			a.Address = value
		}
		if field := into[key]; field != nil {
			if *field, err = base64.StdEncoding.DecodeString(value); err != nil || len(*field) == 0 {
				return etcd.ClientConfig{}, fmt.Errorf("no %s", key)
			}
		}
	}
	return a, nil
}
