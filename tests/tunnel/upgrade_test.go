package tunnel

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/clusterstate"
	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/internal/sandbox"
	"ebb/internal/testbed"
	"ebb/internal/version"
)

const target = "1.37.2"

// A whole upgrade, of which neither a node nor the API server is reached but through agents on
// the nodes that are upgraded. At each time there is one agent, and it is on the node whose
// turn it is; when its node is cordoned another one comes, and the first goes: by SIGTERM with
// the connection to the API server that it carries, by SIGKILL with the SSH connection over
// which the script of its own node is followed.
func TestUpgradeThroughTheTunnel(t *testing.T) {
	g := newGateway(t, "upgrade", 1, patiently)
	ctx := t.Context()
	require.NoError(t, shared.Sandbox.Deploy(ctx, sandbox.Workload{Name: "web", Replicas: 4, Spread: true, Budget: &sandbox.Budget{MaxUnavailable: "1"}}))
	first := onNode(t, g, "w1")
	worker, err := shared.Worker(ctx)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, worker.Stop()) })
	require.NoError(t, shared.Sandbox.Machine("w3").HangScript())
	const id = "through"
	_, _, err = shared.Ops.Start(ctx, ops.Request{ID: id, Kind: operation.KindUpgrade, Cluster: cluster, Route: version.Route{Target: target}})
	require.NoError(t, err)

	eventuallyIs(t, g, "w1", "Cordoned")
	second := onNode(t, g, "w2")
	require.Positive(t, g.streams()["w1"], "it carries the connection to the API server")
	first.signal(syscall.SIGTERM)
	ended(t, first, 1, "what it carried is cut")

	eventuallyIs(t, g, "w2", "Cordoned")
	eventuallyIs(t, g, "w2", "Ready") // its node is uncordoned
	third := onNode(t, g, "w3")
	second.signal(syscall.SIGTERM)
	ended(t, second, 1, "what it carried is cut")

	eventuallyIs(t, g, "w3", "Cordoned")
	eventually(t, "the script runs", func() bool { return ran("w3") })
	onNode(t, g, "w1")
	require.NoError(t, third.process.Kill())
	require.NoError(t, shared.Sandbox.Machine("w3").HealScript())

	followed, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	var end ops.Operation
	require.NoError(t, shared.Ops.Watch(followed, id, func(o ops.Operation) { end = o }))
	require.Equal(t, ops.Done, end.State, "%+v", end)
	require.NoError(t, shared.Verify(ctx, testbed.AllAt(target), testbed.InState(clusterstate.Running), testbed.OnlyCordoned(), testbed.AllAvailable(),
		testbed.Ran("w1", "kubeadm upgrade node", 1), testbed.Ran("w2", "kubeadm upgrade node", 1), testbed.Ran("w3", "kubeadm upgrade node", 1)))
}

// onNode starts an agent that is on a node and returns when it is connected. Its drain is short.
func onNode(t *testing.T, g *gateway, node string) *agent {
	t.Helper()
	a := newAgent(t, node, append(certified(), "--drain-timeout", "1s")...)
	eventually(t, "the agent on "+node+" is connected", func() bool { return g.states()[node] != "" })
	return a
}

func eventuallyIs(t *testing.T, g *gateway, agent, state string) {
	t.Helper()
	require.Eventually(t, func() bool { return g.states()[agent] == state }, 2*patience, 5*time.Millisecond, "agent %s is %s", agent, state)
}

func ran(node string) bool {
	for _, line := range shared.Sandbox.Machine(node).Commands() {
		if strings.HasPrefix(line, "kubeadm upgrade node") {
			return true
		}
	}
	return false
}
