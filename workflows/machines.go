package workflows

import (
	"fmt"
	"slices"
	"time"

	"go.temporal.io/sdk/workflow"

	"ebb/activities"
	"ebb/internal/infra"
	"ebb/internal/policy"
)

// machineGroups is how many activities ask for the states of machines at once, where one call
// tells that of one machine: each makes infra.StatesAtOnce calls at a time.
const machineGroups = 2

// onInfra is for activities that make one call to the infrastructure. They have the time
// that the configuration gives to it.
func (e *execution) onInfra(ctx workflow.Context, summary string, all time.Duration) workflow.Context {
	once := onceOf(e.survey.Infra, infraTimeout)
	return with(ctx, summary, once, max(all, once), 0)
}

// onceOf is how long an activity with one call to the infrastructure may take, at least least.
func onceOf(calls activities.InfraCalls, least time.Duration) time.Duration {
	return max(least, calls.Timeout+apiCallTimeout)
}

// machinesDown returns the names of the nodes whose machine is stopped or gone.
func machinesDown(ctx workflow.Context, cluster string, nodes []policy.Node, calls activities.InfraCalls) (down []string, err error) {
	groups := [][]policy.Node{nodes}
	if !calls.Lists {
		groups = slices.Collect(slices.Chunk(nodes, infra.StatesAtOnce))
	}
	once := onceOf(calls, apiCallTimeout)
	err = each(ctx, groups, machineGroups, func(ctx workflow.Context, group []policy.Node) error {
		ask := with(ctx, askingFor(group), once, max(apiRetryFor, 2*once), 0)
		found, err := call(ask, act.Machines, activities.MachinesInput{Cluster: cluster, Nodes: group})
		down = append(down, found.Down...)
		return err
	})
	return down, err
}

func askingFor(group []policy.Node) string {
	if len(group) == 1 {
		return "is the machine of " + group[0].Name + " up?"
	}
	return fmt.Sprintf("are the machines of %s and %d more up?", group[0].Name, len(group)-1)
}
