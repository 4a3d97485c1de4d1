package activities

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"

	"ebb/internal/etcd"
	"ebb/internal/nodessh"
	"ebb/internal/plan"
)

// etcdScript prints where the etcd of a kubeadm control plane listens and the
// certificates of its health check, in base64; nothing when there is no etcd
// here. The directory is read off the manifest, as kubeadm lets it be chosen.
const etcdScript = `
manifest=/etc/kubernetes/manifests/etcd.yaml
[ -f "$manifest" ] || exit 0
pki=$(dirname "$(sed -n 's/.*--trusted-ca-file=//p' "$manifest" | head -n 1)")
echo "address=$(sed -n 's/.*--advertise-client-urls=https:\/\///p' "$manifest" | head -n 1 | cut -d , -f 1)"
echo "ca=$(base64 "$pki/ca.crt" | tr -d '\n')"
echo "certificate=$(base64 "$pki/healthcheck-client.crt" | tr -d '\n')"
echo "key=$(base64 "$pki/healthcheck-client.key" | tr -d '\n')"
`

// EtcdInput names the cluster, and the control plane that is about to be taken
// out of service (empty = none yet).
type EtcdInput struct {
	Cluster string `json:"cluster"`
	Except  string `json:"except,omitempty"`
}

// EtcdResult lists what is wrong with etcd; nothing = healthy, or not on the
// control planes.
type EtcdResult struct {
	Faults []string `json:"faults,omitempty"`
}

// Etcd checks that etcd's members are the control planes, and that each but one
// is healthy. It asks over SSH to a control plane, from where it connects to the
// members with the certificate of their own health check. An etcd that runs
// elsewhere is left to Health, which has the API server ask for it.
func (a *Activities) Etcd(ctx context.Context, in EtcdInput) (EtcdResult, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return EtcdResult{}, permanent(TypeConfig, err)
	}
	nodes, err := listNodes(ctx, c)
	if err != nil {
		return EtcdResult{}, err
	}
	var names []string
	var via *plan.Node
	for i, n := range nodes {
		if n.Role == plan.Worker {
			continue
		}
		names = append(names, n.Name)
		if n.Ready && (via == nil || via.Name == in.Except) { // another than the one that is about to go, if there is one
			via = &nodes[i]
		}
	}
	if via == nil || len(names) < 2 {
		return EtcdResult{}, nil // there is no other, or Health has said that it is not Ready
	}
	members, stacked, err := a.etcdMembers(ctx, in.Cluster, *via)
	switch {
	case err != nil && nodessh.Permanent(err):
		return EtcdResult{Faults: []string{err.Error()}}, nil
	case err != nil || !stacked:
		return EtcdResult{}, err
	}
	return EtcdResult{Faults: etcd.Faults(members, names, in.Except)}, nil
}

// etcdMembers asks through one control plane; stacked is false where it has no etcd.
func (a *Activities) etcdMembers(ctx context.Context, cluster string, via plan.Node) (members []etcd.Member, stacked bool, err error) {
	target, _, err := a.reach(ctx, cluster, via)
	if err != nil {
		return nil, false, err
	}
	client, err := nodessh.Dial(ctx, target)
	if err != nil {
		return nil, false, fmt.Errorf("node %s at %s: %w", via.Name, target.Address, err)
	}
	defer func() { _ = client.Close() }() // nothing was written
	output, complaint, exit, err := client.Exec(ctx, etcdScript)
	if err != nil {
		return nil, false, fmt.Errorf("node %s at %s: %w", via.Name, target.Address, err)
	}
	access, err := etcdAccess(output)
	if exit != 0 || err != nil {
		return nil, false, fmt.Errorf("node %s: the certificates of etcd cannot be read (exit %d): %s", via.Name, exit, tail(strings.TrimSpace(complaint), 300))
	}
	if access.Address == "" {
		return nil, false, nil
	}
	access.Dial = client.Dial
	members, err = etcd.Look(ctx, access)
	if err != nil {
		return nil, true, fmt.Errorf("through node %s: %w", via.Name, err)
	}
	return members, true, nil
}

// etcdAccess reads what etcdScript printed. Its error never quotes it.
func etcdAccess(output string) (a etcd.Access, err error) {
	into := map[string]*[]byte{"ca": &a.CA, "certificate": &a.Certificate, "key": &a.Key}
	for line := range strings.Lines(output) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if key == "address" {
			a.Address = value
		}
		if field := into[key]; field != nil {
			if *field, err = base64.StdEncoding.DecodeString(value); err != nil || len(*field) == 0 {
				return etcd.Access{}, fmt.Errorf("no %s", key)
			}
		}
	}
	return a, nil
}
