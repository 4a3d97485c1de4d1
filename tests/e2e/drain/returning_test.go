package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/drain"
)

// agents is a controller in this process that keeps one pod of its own kind on a node, as
// OpenKruise's DaemonSet does: its pods tolerate everything and are bound by their affinity.
type agents struct {
	fixture *fixture
	owner   meta.OwnerReference
}

// runAgents runs the controller until the test is over, and returns its first pod.
func (b *fixture) runAgents() core.Pod {
	b.t.Helper()
	yes := true
	// A ConfigMap stands for the custom resource: the garbage collector needs an owner that exists.
	owner, err := b.box.Client().CoreV1().ConfigMaps(b.namespace).Create(b.t.Context(), &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: "agent"}}, meta.CreateOptions{})
	require.NoError(b.t, err)
	a := &agents{fixture: b, owner: meta.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID, Controller: &yes}}
	ctx, stop := context.WithCancel(b.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for tick := time.NewTicker(100 * time.Millisecond); ctx.Err() == nil; <-tick.C {
			a.reconcile(ctx)
		}
	}()
	b.t.Cleanup(func() { stop(); <-done })
	return b.waitReady("agent", 1)[0]
}

// reconcile makes a pod when there is none that stays. What fails is done at the next look.
func (a *agents) reconcile(ctx context.Context) {
	pods := a.fixture.box.Client().CoreV1().Pods(a.fixture.namespace)
	found, err := pods.List(ctx, meta.ListOptions{LabelSelector: "app=agent"})
	if err != nil {
		return
	}
	for i := range found.Items {
		if found.Items[i].DeletionTimestamp == nil {
			return
		}
	}
	template := a.fixture.template("agent")
	template.Spec.Affinity = onlyOn(a.fixture.node)
	template.Spec.Tolerations = []core.Toleration{{Operator: core.TolerationOpExists}}
	_, _ = pods.Create(ctx, &core.Pod{ObjectMeta: meta.ObjectMeta{
		GenerateName: "agent-", Labels: template.Labels, OwnerReferences: []meta.OwnerReference{a.owner}}, Spec: template.Spec}, meta.CreateOptions{})
}

// A pod that its controller brings back to the cordoned node at once is evicted once; what
// comes back is left, and told.
func TestDrainLeavesPodsThatComeBack(t *testing.T) {
	b := newFixture(t)
	old := b.runAgents()
	b.deploy("web", 1)
	log := b.record()
	result, err := b.start(time.Minute).wait()
	require.NoError(t, err)
	require.Equal(t, 2, result.Evicted)
	require.Equal(t, []string{"pods of " + b.namespace + "/ConfigMap/agent come back to the cordoned node, which they tolerate, " +
		"and are left there (drain.returning: leave)"}, result.Warnings)
	evictions := 0
	for _, e := range log.evictions() {
		if e.pod == old.UID {
			evictions++
		}
	}
	require.Len(t, log.evictions(), 1+evictions, "the other one is the pod of web: what came back was not touched")
	require.NotEqual(t, old.UID, b.waitReady("agent", 1)[0].UID, "it is on the node")
}

func TestDrainGivesUpOnPodsThatComeBack(t *testing.T) {
	b := newFixture(t)
	b.runAgents()
	_, err := b.start(2*time.Minute, func(r *drain.Request) { r.Settings.FailReturning = true }).wait()
	require.ErrorIs(t, err, drain.ErrRecreated)
	require.ErrorContains(t, err, "come back to the cordoned node (3 times so far)")
}
