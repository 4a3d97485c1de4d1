package activities

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"ebb/internal/nodessh"
	"ebb/internal/plan"
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

// PreflightInput names the node to look at.
type PreflightInput struct {
	Cluster string    `json:"cluster"`
	Node    plan.Node `json:"node"`
}

// PreflightResult lists what is wrong with a node; nothing = fit.
type PreflightResult struct {
	Faults []string `json:"faults,omitempty"`
}

// Preflight checks over SSH that a node can be upgraded: it is reached, its host
// key is known, it is the machine that the cluster means, it lets Ebb act as
// root, and it has kubeadm and room. What is wrong is a result, not an error, so
// that the faults of all nodes come in one report.
func (a *Activities) Preflight(ctx context.Context, in PreflightInput) (PreflightResult, error) {
	output, exit, err := a.onNode(ctx, in.Cluster, in.Node, preflightScript)
	switch {
	case ctx.Err() != nil:
		return PreflightResult{}, ctx.Err()
	case err != nil && nodessh.Permanent(err):
		return PreflightResult{Faults: []string{err.Error()}}, nil
	case err != nil:
		return PreflightResult{}, err
	case exit != 0:
		return PreflightResult{Faults: []string{fmt.Sprintf("node %s: commands cannot be run as root (exit %d): %s",
			in.Node.Name, exit, tail(strings.TrimSpace(output), 300))}}, nil
	}
	return PreflightResult{Faults: judge(in.Node, output)}, nil
}

// judge compares what a node printed with what the cluster says of it.
func judge(n plan.Node, output string) (faults []string) {
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

// HealthInput names the cluster, and the control plane that is about to be
// taken out of service (empty = none yet).
type HealthInput struct {
	Cluster string `json:"cluster"`
	Except  string `json:"except,omitempty"`
}

// HealthResult lists what is wrong with the control plane; nothing = healthy.
type HealthResult struct {
	Faults []string `json:"faults,omitempty"`
}

// Health checks that the control plane can do without one of its nodes: every
// other one is Ready and not cordoned, and the API server reaches etcd.
func (a *Activities) Health(ctx context.Context, in HealthInput) (HealthResult, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return HealthResult{}, permanent(TypeConfig, err)
	}
	nodes, err := listNodes(ctx, c)
	if err != nil {
		return HealthResult{}, err
	}
	faults := plan.UnfitControlPlanes(nodes, in.Except)
	body, err := c.Client.CoreV1().RESTClient().Get().AbsPath("/readyz/etcd").DoRaw(ctx)
	if err != nil {
		faults = append(faults, fmt.Sprintf("the API server cannot reach etcd: %v %s", err, tail(string(body), 200)))
	}
	return HealthResult{Faults: faults}, nil
}

// tail is the end of a text, at most n bytes, cut at a character.
func tail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[len(s)-n:], "")
}
