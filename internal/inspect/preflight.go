package inspect

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"go.uber.org/zap"

	"ebb/internal/cluster"
	"ebb/internal/nodeaccess"
	"ebb/internal/nodessh"
	"ebb/internal/policy"
	"ebb/internal/tail"
)

// minDiskFree is the space an upgrade needs on a node's root file system, in
// KiB: two sets of control plane images (about 1 GiB unpacked) and packages.
const minDiskFree = 2 << 20

// preflightScript prints one fact a line. Its stderr is mixed in by some sudo
// set-ups, so that readers look for their key only.
const preflightScript = `
echo "machine-id=$(cat /etc/machine-id)"
echo "kubeadm=$(kubeadm version -o short 2>/dev/null)"
echo "disk-free=$(df -Pk / | tail -n 1 | tr -s ' ' | cut -d ' ' -f 4)"
`

// Preflight checks over SSH that a node can be upgraded: it is reached, its host
// key is known, it is the machine that the cluster means, it lets Ebb act as
// root, and it has kubeadm and room. It returns an error when the node could not be
// asked and trying again may help.
func Preflight(ctx context.Context, c *cluster.Cluster, n policy.Node, log *zap.Logger) (faults []string, err error) {
	output, exit, err := nodeaccess.Exec(ctx, c, n, log, preflightScript)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case nodessh.Permanent(err):
		return []string{err.Error()}, nil
	case err != nil:
		return nil, err
	case exit != 0:
		return []string{fmt.Sprintf("node %s: commands cannot be run as root (exit %d): %s",
			n.Name, exit, tail.Of(strings.TrimSpace(output), 300))}, nil
	}
	return judge(n, output), nil
}

// judge compares what a node printed with what the cluster says of it.
func judge(n policy.Node, output string) (faults []string) {
	facts := map[string]string{}
	for line := range strings.Lines(output) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			facts[key] = value
		}
	}
	if id := facts["machine-id"]; id != n.MachineID {
		faults = append(faults, fmt.Sprintf("node %s: the address leads to another machine: /etc/machine-id is %q, the cluster says %q; check its forwarding rule",
			n.Name, id, n.MachineID))
	}
	if facts["kubeadm"] == "" {
		faults = append(faults, fmt.Sprintf("node %s: kubeadm is not installed", n.Name))
	}
	free, err := strconv.Atoi(facts["disk-free"])
	if err != nil || free < minDiskFree {
		faults = append(faults, fmt.Sprintf("node %s: %s KiB free on /, an upgrade needs %d", n.Name, facts["disk-free"], minDiskFree))
	}
	return faults
}
