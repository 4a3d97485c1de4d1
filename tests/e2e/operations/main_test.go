// Package operations proves the operations end to end: a real kube-apiserver,
// etcd, controllers and scheduler, real SSH, the embedded engine, and workers as
// processes that are killed.
//
// The tests share one cluster and run one after another. Each leaves it as it
// would want to find it: Running, every node schedulable, the workloads whole.
package operations

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb/internal/clusterstate"
	"ebb/internal/config"
	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/internal/sandbox"
	"ebb/internal/testbed"
)

var shared *testbed.Bed

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "ebb-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if shared, err = start(ctx, dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := shared.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if code != 0 {
		fmt.Fprintln(os.Stderr, "kept for a look:", dir)
		return code
	}
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func start(ctx context.Context, dir string) (*testbed.Bed, error) {
	bed, err := testbed.Start(ctx, testbed.Options{
		Dir: dir, UIPort: -1,
		Sandbox: sandbox.Options{
			ControlPlanes: 1, Workers: 5, PodReadyDelay: 500 * time.Millisecond, PodDeleteDelay: 300 * time.Millisecond, ScriptDelay: 500 * time.Millisecond,
		},
		Edit: func(c *config.Cluster) { c.Drain.Timeout = config.Duration(10 * time.Second) },
	})
	if err != nil {
		return nil, err
	}
	for _, w := range []sandbox.Workload{
		{Name: "web", Replicas: 10, Spread: true, Budget: &sandbox.Budget{MaxUnavailable: "1"}},
		{Name: "api", Replicas: 5, Spread: true, Budget: &sandbox.Budget{MinAvailable: "80%"}},
	} {
		if err := bed.Sandbox.Deploy(ctx, w); err != nil {
			return nil, err
		}
	}
	_, err = bed.Worker(ctx)
	return bed, err
}

// begin starts an operation and returns its ID.
func begin(t *testing.T, r ops.Request) string {
	t.Helper()
	r.Cluster = testbed.ClusterName
	if r.ID == "" {
		r.ID = fmt.Sprintf("%s-%d", ops.Word(r.Kind), time.Now().UnixNano())
	}
	_, started, err := shared.Ops.Start(t.Context(), r)
	require.NoError(t, err)
	require.True(t, started)
	return r.ID
}

// finish follows an operation to its end.
func finish(t *testing.T, id string) ops.Operation {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var last ops.Operation
	require.NoError(t, shared.Ops.Watch(ctx, id, func(o ops.Operation) { last = o }))
	record(t, id)
	return last
}

// until follows an operation until what it says of itself satisfies want.
func until(t *testing.T, id string, want func(ops.Operation) bool) {
	t.Helper()
	var last ops.Operation
	err := testbed.WaitForOperation(t.Context(), shared.Ops, id, func(o ops.Operation) bool { last = o; return want(o) })
	require.NoError(t, err, "last seen: %s", text(last))
}

// blocked holds while web's budget, which allows nothing, keeps a pod on a node.
var blocked = testbed.BlockedBy("default/web")

// idle holds when that budget keeps all that is left: the moment to kill something.
var idle = testbed.OnlyBlockedBy("default/web")

// webHosts are the workers that have pods of web, sorted; at least two.
func webHosts(t *testing.T) []string {
	t.Helper()
	found, err := shared.NodesOf(t.Context(), "web")
	require.NoError(t, err)
	if len(found) < 2 { // earlier drains have left all of them on one node: made anew, they spread
		require.NoError(t, shared.Sandbox.Client().CoreV1().Pods(sandbox.Namespace).DeleteCollection(t.Context(), meta.DeleteOptions{},
			meta.ListOptions{LabelSelector: "app=web"}))
		require.NoError(t, testbed.Poll(t.Context(), func() (bool, error) {
			found, err = shared.NodesOf(t.Context(), "web")
			return err == nil && len(found) >= 2 && !slices.Contains(found, ""), err // "": one of them has no node yet
		}))
		verify(t, testbed.AllAvailable())
	}
	require.GreaterOrEqual(t, len(found), 2)
	return found
}

func text(o ops.Operation) string {
	body, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		return err.Error()
	}
	return string(body)
}

func verify(t *testing.T, checks ...testbed.Check) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // also used when t's own context is over
	defer cancel()
	require.NoError(t, shared.Verify(ctx, checks...))
}

// untouched is how every test leaves the cluster.
func untouched(t *testing.T) {
	t.Helper()
	verify(t, testbed.InState(clusterstate.Running), testbed.TargetIs(""), testbed.OnlyCordoned(), testbed.AllAvailable())
}

// forbid lets web's budget allow nothing until the test is over or allow is called.
func forbid(t *testing.T) (allow func()) {
	t.Helper()
	require.NoError(t, shared.Sandbox.SetBudget(t.Context(), "web", sandbox.Budget{MaxUnavailable: "0"}))
	allow = func() {
		require.NoError(t, shared.Sandbox.SetBudget(context.Background(), "web", webBudget))
	}
	t.Cleanup(allow)
	return allow
}

var webBudget = sandbox.Budget{MaxUnavailable: "1"}

// operatorCordons is what `kubectl cordon` or `kubectl uncordon` writes.
func operatorCordons(t *testing.T, node string, cordoned bool) {
	t.Helper()
	patch := fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, cordoned)
	_, err := shared.Sandbox.Client().CoreV1().Nodes().Patch(context.Background(), node, types.StrategicMergePatchType, []byte(patch), meta.PatchOptions{})
	require.NoError(t, err)
}

func nodes(t *testing.T) []core.Node {
	t.Helper()
	list, err := shared.Sandbox.Nodes(t.Context())
	require.NoError(t, err)
	return list
}

func phase(o ops.Operation, node string) operation.Phase {
	if o.Status != nil {
		for _, n := range o.Status.Nodes {
			if n.Node == node {
				return n.Phase
			}
		}
	}
	return ""
}
