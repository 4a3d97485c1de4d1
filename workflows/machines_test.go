package workflows

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/operation"
	"ebb/internal/policy"
	"ebb/internal/version"
)

// workersNamed returns so many workers.
func workersNamed(n int) (nodes []policy.Node) {
	for i := range n {
		nodes = append(nodes, policy.Node{Name: fmt.Sprintf("w%d", i+1), UID: fmt.Sprintf("u-%d", i+1), Role: policy.Worker, Version: "1.36.3", Ready: true})
	}
	return nodes
}

// A retry asks for the machines of 200 nodes: in groups where each is a call, in one call
// where the provider can, and in both cases with the time that the configuration gives it.
func TestRetryAsksForManyMachines(t *testing.T) {
	nodes := append([]policy.Node{cp1}, workersNamed(199)...)
	for name, c := range map[string]struct {
		calls activities.InfraCalls
		asked int // activities
		once  time.Duration
	}{
		"each is a call":       {activities.InfraCalls{Timeout: 10 * time.Minute}, 20, 10*time.Minute + apiCallTimeout},
		"one call tells them":  {activities.InfraCalls{Timeout: time.Minute, Lists: true}, 1, time.Minute + apiCallTimeout},
		"of an earlier worker": {activities.InfraCalls{}, 20, apiCallTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			in := activities.ClaimInput{Cluster: "prod", Operation: op, State: clusterstate.Upgrading, Route: version.Route{Target: target}, Machines: &activities.MachineStates{}}
			w.env.OnActivity(act.Claim, mock.Anything, in).Return(activities.ClaimResult{Ask: &activities.AskMachines{Nodes: nodes, Infra: c.calls}}, nil).Once()
			asked := map[string]bool{}
			w.env.OnActivity(act.Machines, mock.Anything, mock.Anything).Return(func(ctx context.Context, in activities.MachinesInput) (activities.MachinesResult, error) {
				w.mu.Lock()
				defer w.mu.Unlock()
				for _, n := range in.Nodes {
					require.False(t, asked[n.Name], n.Name)
					asked[n.Name] = true
				}
				require.Equal(t, c.once, activity.GetInfo(ctx).StartToCloseTimeout)
				if in.Nodes[0].Name == "cp1" {
					return activities.MachinesResult{Down: []string{"w7"}}, nil
				}
				return activities.MachinesResult{}, nil
			}).Times(c.asked)
			in.Machines = &activities.MachineStates{Asked: true, Down: []string{"w7"}}
			w.env.OnActivity(act.Claim, mock.Anything, in).Return(activities.ClaimResult{}, fails(operation.TypeRefused, "the machine of w7 is down")).Once()

			w.env.ExecuteWorkflow(Upgrade, operation.UpgradeInput{Cluster: "prod", Route: version.Route{Target: target}})

			kind, text := w.ended()
			require.Equal(t, operation.TypeRefused, kind)
			require.Contains(t, text, "the machine of w7 is down")
			require.Len(t, asked, 200)
		})
	}
}
