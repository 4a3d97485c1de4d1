// Package inspect looks at a managed cluster, its control plane, its nodes and
// their machines. It changes nothing. Activities ask it on behalf of operations,
// and commands ask it directly.
//
// What is wrong with what was looked at is a list of faults, each a sentence that
// says what to do; an error says that it could not be looked at.
package inspect

import (
	"context"

	"ebb/internal/cluster"
	"ebb/internal/infra"
	"ebb/internal/policy"
)

// DownMachines returns the names of the nodes whose machine is known to be stopped
// or gone. A provider that cannot tell knows of none.
func DownMachines(ctx context.Context, c *cluster.Cluster, nodes []policy.Node) ([]string, error) {
	provider, err := c.Infra()
	if err != nil {
		return nil, err
	}
	machines := make([]infra.Machine, len(nodes))
	for i, n := range nodes {
		machines[i] = infra.MachineOf(c.Name, n)
	}
	states, err := infra.States(ctx, provider, machines)
	if err != nil {
		return nil, err
	}
	var down []string
	for i, n := range nodes {
		if states[i] == infra.Stopped || states[i] == infra.Gone {
			down = append(down, n.Name)
		}
	}
	return down, nil
}
