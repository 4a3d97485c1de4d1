package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb/internal/cluster"
	"ebb/internal/config"
	"ebb/internal/drain"
	"ebb/internal/operation"
	"ebb/internal/sandbox"
)

// nodeSet is the nodes of one test: the one that is drained, and those that its pods can
// be scheduled on.
type nodeSet struct {
	node   string
	others []string
}

// nodeSets holds the sets that no test uses, so that two tests may run in parallel: most
// of the time a drain waits.
var nodeSets = func() chan nodeSet {
	c := make(chan nodeSet, 2)
	c <- nodeSet{node: "w1", others: []string{"w2"}}
	c <- nodeSet{node: "w3", others: []string{"w4"}}
	return c
}()

// fixture is a namespace of its own on the shared cluster, for one test. Its pods run on
// the node that will be drained, and can only be scheduled on the others, which are
// cordoned until then.
type fixture struct {
	nodeSet
	t         *testing.T
	box       *sandbox.Sandbox
	cluster   *cluster.Cluster
	namespace string
}

// newFixture returns the fixture of a test that runs in parallel with another one.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	t.Parallel()
	p := <-nodeSets
	t.Cleanup(func() { nodeSets <- p })
	return makeFixture(t, p, sandboxFor(t), clusterFor(t))
}

// newIsolatedFixture returns the fixture of a test that breaks the control plane, with a
// control plane of its own.
func newIsolatedFixture(t *testing.T) *fixture {
	t.Helper()
	t.Parallel()
	box, err := sandbox.Start(t.Context(), sandboxOptions(filepath.Join(t.TempDir(), "sandbox"), 2))
	require.NoError(t, err)
	t.Cleanup(box.Stop)
	return makeFixture(t, nodeSet{node: "w1", others: []string{"w2"}}, box, cluster.New("own", box.Client(), nil, zap.NewNop()))
}

// newExclusiveFixture returns the fixture of a test that needs the whole cluster; it runs
// alone.
func newExclusiveFixture(t *testing.T) *fixture {
	t.Helper()
	p, q := <-nodeSets, <-nodeSets
	t.Cleanup(func() { nodeSets <- p; nodeSets <- q })
	return makeFixture(t, nodeSet{node: p.node, others: append(slices.Clone(p.others), q.node, q.others[0])}, sandboxFor(t), clusterFor(t))
}

func makeFixture(t *testing.T, p nodeSet, box *sandbox.Sandbox, c *cluster.Cluster) *fixture {
	t.Helper()
	b := &fixture{nodeSet: p, t: t, box: box, cluster: c}
	b.newNamespace()
	for _, node := range p.others {
		b.cordon(t.Context(), node, true)
	}
	t.Cleanup(func() { b.clean(p) })
	return b
}

func (b *fixture) newNamespace() {
	b.t.Helper()
	ns, err := b.cluster.Client.CoreV1().Namespaces().Create(b.t.Context(),
		&core.Namespace{ObjectMeta: meta.ObjectMeta{GenerateName: "drain-"}}, meta.CreateOptions{})
	require.NoError(b.t, err)
	b.namespace = ns.Name
}

// clean leaves the nodes as they were found, for the next test.
func (b *fixture) clean(p nodeSet) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client := b.box.Client()
	for _, node := range append(slices.Clone(p.others), p.node) {
		b.cordon(ctx, node, false)
	}
	require.NoError(b.t, client.CoreV1().Namespaces().Delete(ctx, b.namespace, meta.DeleteOptions{}))
	now := meta.DeleteOptions{GracePeriodSeconds: new(int64)}
	require.Eventually(b.t, func() bool {
		api := client.CoreV1().Pods(b.namespace)
		pods, err := api.List(ctx, meta.ListOptions{})
		if err != nil {
			return false
		}
		for i := range pods.Items { // what fails here is done at the next look
			p := &pods.Items[i]
			if len(p.Finalizers) > 0 {
				p.Finalizers = nil
				_, _ = api.Update(ctx, p, meta.UpdateOptions{})
			}
			_ = api.Delete(ctx, p.Name, now)
		}
		return len(pods.Items) == 0
	}, time.Minute, 200*time.Millisecond)
}

func (b *fixture) cordon(ctx context.Context, node string, on bool) {
	b.t.Helper()
	patch := fmt.Sprintf(`{"spec":{"unschedulable":%v}}`, on)
	_, err := b.box.Client().CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(patch), meta.PatchOptions{})
	require.NoError(b.t, err)
}

// ready prepares a drain: it uncordons the other nodes, cordons the node, and waits until
// the watch shows everything. The time that the first use of a cluster takes, or a watch
// that an earlier test has broken, is not part of what is measured.
func (b *fixture) ready() {
	b.t.Helper()
	watch, err := b.cluster.Watch(b.t.Context())
	require.NoError(b.t, err)
	for _, node := range b.others {
		b.cordon(b.t.Context(), node, false)
	}
	b.cordon(b.t.Context(), b.node, true)
	client := b.cluster.Client
	require.Eventually(b.t, func() bool {
		pods, podsErr := client.CoreV1().Pods(b.namespace).List(b.t.Context(), meta.ListOptions{})
		budgets, budgetsErr := client.PolicyV1().PodDisruptionBudgets(b.namespace).List(b.t.Context(), meta.ListOptions{})
		node := watch.Node(b.node)
		if podsErr != nil || budgetsErr != nil || node == nil || !node.Spec.Unschedulable {
			return false
		}
		shown := map[string]bool{}
		for _, budget := range watch.Budgets(b.namespace) {
			shown[budget.ResourceVersion] = true
		}
		for i := range pods.Items {
			if p := watch.Pod(b.namespace, pods.Items[i].Name); p != nil {
				shown[p.ResourceVersion] = true
			}
		}
		behind := func(version string) bool { return !shown[version] }
		return !slices.ContainsFunc(pods.Items, func(p core.Pod) bool { return behind(p.ResourceVersion) }) &&
			!slices.ContainsFunc(budgets.Items, func(b policy.PodDisruptionBudget) bool { return behind(b.ResourceVersion) })
	}, time.Minute, 50*time.Millisecond, "the watch shows what there is")
}

// attempt is one drain that runs, with all its reports.
type attempt struct {
	started time.Time
	done    chan struct{}
	result  drain.Result
	err     error

	mu      sync.Mutex
	reports []timedReport
}

type timedReport struct {
	at time.Time
	operation.DrainProgress
}

// start cordons the node and drains it; change edits the request.
func (b *fixture) start(timeout time.Duration, change ...func(*drain.Request)) *attempt {
	b.t.Helper()
	b.ready()
	a := &attempt{started: time.Now(), done: make(chan struct{})}
	req := drain.Request{
		Cluster: b.cluster, Node: b.node, Operation: "e2e", Settings: drain.NewSettings(config.Drain{}), Deadline: a.started.Add(timeout),
		Report: func(p operation.DrainProgress) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.reports = append(a.reports, timedReport{time.Now(), p})
		},
	}
	for _, f := range change {
		f(&req)
	}
	ctx := b.t.Context()
	go func() {
		defer close(a.done)
		a.result, a.err = drain.Run(ctx, req)
	}()
	b.t.Cleanup(func() { <-a.done })
	return a
}

func (a *attempt) wait() (drain.Result, error) {
	<-a.done
	return a.result, a.err
}

// last returns the newest report.
func (a *attempt) last() timedReport {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.reports) == 0 {
		return timedReport{}
	}
	return a.reports[len(a.reports)-1]
}

// until waits for a report that holds reports true for.
func (a *attempt) until(t *testing.T, what string, holds func(operation.DrainProgress) bool) {
	t.Helper()
	require.Eventually(t, func() bool { return holds(a.last().DrainProgress) }, time.Minute, 20*time.Millisecond, what)
}

// evicted waits until so many evictions were accepted.
func (a *attempt) evicted(t *testing.T, n int) {
	t.Helper()
	a.until(t, fmt.Sprintf("%d evicted", n), func(p operation.DrainProgress) bool { return p.Evicted >= n })
}

// blocked waits until a report says of a pod with this prefix that it is
// blocked, and returns that entry and how long the drain took to say it.
func (a *attempt) blocked(t *testing.T, prefix string) (found operation.BlockedPod, after time.Duration) {
	t.Helper()
	require.Eventually(t, func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, r := range a.reports {
			for _, p := range r.Blocked {
				if strings.HasPrefix(p.Pod, prefix) {
					found, after = p, r.at.Sub(a.started)
					return true
				}
			}
		}
		return false
	}, 30*time.Second, 20*time.Millisecond)
	return found, after
}

// powerOff turns the node's machine off and, when the test is over, on again.
func (b *fixture) powerOff() {
	b.t.Helper()
	machine := b.box.Machine(b.node)
	b.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(b.t, machine.SetPower(ctx, true))
		require.Eventually(b.t, func() bool {
			node, err := b.cluster.Client.CoreV1().Nodes().Get(ctx, machine.Name(), meta.GetOptions{})
			return err == nil && healthy(node)
		}, time.Minute, 100*time.Millisecond)
	})
	require.NoError(b.t, machine.SetPower(b.t.Context(), false))
}

// healthy reports whether a node is Ready and has no taint any more for not having been.
func healthy(node *core.Node) bool {
	kept := slices.ContainsFunc(node.Spec.Taints, func(t core.Taint) bool {
		return t.Key == core.TaintNodeNotReady || t.Key == core.TaintNodeUnreachable
	})
	return !kept && slices.ContainsFunc(node.Status.Conditions, func(c core.NodeCondition) bool {
		return c.Type == core.NodeReady && c.Status == core.ConditionTrue
	})
}
