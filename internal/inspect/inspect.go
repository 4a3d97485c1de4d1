// Package inspect looks at a managed cluster, its control plane, its nodes and
// their machines. It changes nothing. Activities ask it on behalf of operations,
// and commands ask it directly.
//
// What is wrong with what was looked at is a list of faults, each a sentence that
// says what to do; an error says that it could not be looked at.
package inspect

import (
	"context"
	"fmt"

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
	var down []string
	for _, n := range nodes {
		state, err := provider.State(ctx, infra.MachineOf(c.Name, n))
		if err != nil {
			return nil, fmt.Errorf("state of the machine of %s: %w", n.Name, err)
		}
		if state == infra.Stopped || state == infra.Gone {
			down = append(down, n.Name)
		}
	}
	return down, nil
}
