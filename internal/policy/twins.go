package policy

import "fmt"

// checkMachineIDs returns a fault for each node that has its machine ID with an earlier
// one in common, as copies of one disk image do. Which machine an address or a provider
// leads to cannot be told of them.
func checkMachineIDs(nodes []Node) (faults []string) {
	owner := map[string]string{}
	for _, n := range nodes {
		first, taken := owner[n.MachineID]
		switch {
		case n.MachineID == "":
		case taken:
			faults = append(faults, fmt.Sprintf("nodes %s and %s have the same machine ID %s, so that Ebb cannot tell their machines apart: "+
				"on one of them remove /etc/machine-id, run systemd-machine-id-setup and restart the kubelet", first, n.Name, n.MachineID))
		default:
			owner[n.MachineID] = n.Name
		}
	}
	return faults
}
