package infra

import "ebb/internal/policy"

// MachineOf returns the machine of a node of a cluster.
func MachineOf(cluster string, n policy.Node) Machine {
	return Machine{
		Cluster: cluster, Node: n.Name, UID: n.UID, ProviderID: n.ProviderID,
		MachineID: n.MachineID, Addresses: n.Addresses,
	}
}
