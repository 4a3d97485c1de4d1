package endpoints

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/stretchr/testify/require"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/cluster"
	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/internal/sandbox"
	"ebb/internal/testbed"
)

// fourNodes is a test bed with a worker process and a workload that has a pod on each of
// four nodes, all of which follow a server of endpoints.
type fourNodes struct {
	t      *testing.T
	bed    *testbed.Bed
	pods   map[string]string // address of the pod by node
	client *xdsClient
}

const spread = "prod/default/spread:80"

func startFourNodes(t *testing.T) *fourNodes {
	t.Helper()
	bed, err := testbed.Start(t.Context(), testbed.Options{
		Dir: t.TempDir(), UIPort: -1,
		Sandbox: sandbox.Options{ControlPlanes: 1, Workers: 4, PodReadyDelay: time.Second, PodDeleteDelay: time.Second},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, bed.Stop()) })
	f := &fourNodes{t: t, bed: bed, pods: map[string]string{}}
	_, err = bed.Worker(t.Context())
	require.NoError(t, err)
	require.NoError(t, bed.Sandbox.Deploy(t.Context(), sandbox.Workload{
		Name: "spread", Replicas: 4, Spread: true, Budget: &sandbox.Budget{MinAvailable: "4"}, // which allows nothing
	}))
	createServiceIn(t, bed.Sandbox.Client(), "spread")
	found, err := bed.Sandbox.Client().CoreV1().Pods(sandbox.Namespace).List(t.Context(), meta.ListOptions{LabelSelector: "app=spread"})
	require.NoError(t, err)
	for _, p := range found.Items {
		f.pods[p.Spec.NodeName] = p.Status.PodIP
	}
	require.Len(t, f.pods, 4, "one on each node")
	_, address := startServerWith(t, bed.Sandbox.Client())
	f.client = openDelta(t.Context(), t, address)
	f.client.request(resource.EndpointType, []string{spread}, response{})
	f.waitForHealths(map[string]string{"w1": healthy, "w2": healthy, "w3": healthy, "w4": healthy})
	return f
}

// waitForHealths waits until the endpoints of the pods that were there at the start, and
// no others, are as wanted: healths by node.
func (f *fourNodes) waitForHealths(byNode map[string]string) {
	f.t.Helper()
	want := map[string]string{}
	for node, health := range byNode {
		want[f.pods[node]] = health
	}
	f.client.waitForEndpoints(spread, want)
}

// begin starts the removal of three of the nodes, and returns once the pods of one of them
// are kept by their budget.
func (f *fourNodes) begin(id string) {
	f.t.Helper()
	_, _, err := f.bed.Ops.Start(f.t.Context(), ops.Request{ID: id, Kind: operation.KindScaleDown, Cluster: testbed.ClusterName, Nodes: []string{"w1", "w2", "w3"}})
	require.NoError(f.t, err)
	require.NoError(f.t, testbed.WaitForOperation(f.t.Context(), f.bed.Ops, id, testbed.BlockedBy("default/spread")))
	require.NoError(f.t, f.bed.Verify(f.t.Context(), testbed.OnlyCordoned("w1", "w2", "w3")))
}

func (f *fourNodes) finish(id string, want ops.State) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 3*time.Minute)
	defer cancel()
	var last ops.Operation
	require.NoError(f.t, f.bed.Ops.Watch(ctx, id, func(o ops.Operation) { last = o }))
	require.Equal(f.t, want, last.State, last.Message)
}

// leaving returns the nodes that are marked as being drained.
func (f *fourNodes) leaving() (names []string) {
	f.t.Helper()
	list, err := f.bed.Sandbox.Client().CoreV1().Nodes().List(f.t.Context(), meta.ListOptions{})
	require.NoError(f.t, err)
	for i := range list.Items {
		if cluster.DrainedBy(&list.Items[i]) != "" {
			names = append(names, list.Items[i].Name)
		}
	}
	return names
}

// An operation cordons three of four nodes at once and drains them one after the other. The
// endpoints of a node leave when its own drain begins, before any eviction, and not when it
// is cordoned: else one endpoint would carry the traffic of four for the whole time. What is
// given back takes new traffic again.
func TestEndpointsLeaveWithTheDrainOfTheirOwnNode(t *testing.T) {
	f := startFourNodes(t)
	first := map[string]string{"w1": draining, "w2": healthy, "w3": healthy, "w4": healthy}
	f.begin("cancelled")
	f.waitForHealths(first)
	require.Equal(t, []string{"w1"}, f.leaving())
	require.NoError(t, f.bed.Ops.Cancel(t.Context(), "cancelled"))
	f.finish("cancelled", ops.Cancelled)
	f.waitForHealths(map[string]string{"w1": healthy, "w2": healthy, "w3": healthy, "w4": healthy})
	require.Empty(t, f.leaving())

	f.begin("removed")
	f.waitForHealths(first)
	require.NoError(t, f.bed.Sandbox.SetBudget(t.Context(), "spread", sandbox.Budget{MaxUnavailable: "1"}))
	f.requireOneAfterTheOther("w1", "w2", "w3")
	f.finish("removed", ops.Done)
	require.NoError(t, f.bed.Verify(t.Context(), testbed.Removed("w1", "w2", "w3")))
}

// requireOneAfterTheOther follows the endpoints until those of the nodes are gone. The last
// node's takes new traffic throughout, and that of a node as long as the one before has not
// begun to leave. (The two may be told together: the slice is written a little after the end
// of the pod, and the next drain has begun by then.)
func (f *fourNodes) requireOneAfterTheOther(nodes ...string) {
	f.t.Helper()
	for i := 0; i < len(nodes); {
		told := f.client.endpoints(spread)
		if told[f.pods[nodes[i]]] == "" {
			i++
			continue
		}
		stay := append(slices.Clone(nodes[min(i+2, len(nodes)):]), "w4")
		if told[f.pods[nodes[i]]] == healthy && i+1 < len(nodes) {
			stay = append(stay, nodes[i+1])
		}
		for _, node := range stay {
			require.Equal(f.t, healthy, told[f.pods[node]], "%s, while %s is drained: %v of %v", node, nodes[i], told, f.pods)
		}
		f.client.nextResponse()
	}
}
