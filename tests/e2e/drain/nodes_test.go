package e2e

import (
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/drain"
	"ebb/internal/operation"
)

func TestDrainEndsWhenAnOperatorUncordonsTheNode(t *testing.T) {
	b := newFixture(t)
	b.deploy("zero", 1)
	b.budget("zero", "zero", unavailable(0))
	a := b.start(time.Minute)
	a.blocked(t, b.namespace+"/zero")
	b.cordon(t.Context(), b.node, false)
	_, err := a.wait()
	require.ErrorIs(t, err, drain.ErrUncordoned)
}

func TestDrainEndsWhenItsNodeObjectIsDeleted(t *testing.T) {
	b := newFixture(t)
	nodes := b.cluster.Client.CoreV1().Nodes()
	b.node = "leaving"
	_, err := nodes.Create(t.Context(), &core.Node{ObjectMeta: meta.ObjectMeta{Name: b.node}}, meta.CreateOptions{})
	require.NoError(t, err)
	b.bare("held", func(p *pod) { p.Spec.NodeName, p.Finalizers = b.node, []string{"example.com/hold"} })
	a := b.start(time.Minute, forced)
	require.Eventually(t, func() bool {
		p, err := b.cluster.Client.CoreV1().Pods(b.namespace).Get(t.Context(), "held", meta.GetOptions{})
		return err == nil && p.DeletionTimestamp != nil
	}, 20*time.Second, 50*time.Millisecond)
	require.NoError(t, nodes.Delete(t.Context(), b.node, meta.DeleteOptions{}))
	result, err := a.wait()
	require.NoError(t, err)
	require.True(t, result.NodeGone)
}

// The machine loses its power while two pods are terminating on it. No kubelet
// will ever end them, and one has a finalizer besides that nobody takes away.
func TestDrainOfANodeThatGoesDown(t *testing.T) {
	b := newFixture(t)
	log := b.record()
	slow := b.deploy("slow", 1, slowToStop(30*time.Second))[0]
	held := b.deploy("held", 1, func(p *core.PodTemplateSpec) { p.Finalizers = []string{"example.com/hold"} })[0]
	grace := func(r *drain.Request) { r.Settings.GracePeriod = 1 }
	a := b.start(10*time.Second, grace)
	a.evicted(t, 2)
	b.powerOff()
	_, err := a.wait()
	require.ErrorIs(t, err, drain.ErrTimeout, "by default they are waited for all the same")
	require.InDelta(t, 10, time.Since(a.started).Seconds(), 1.5)
	var failure *drain.Error
	require.ErrorAs(t, err, &failure)
	require.Len(t, failure.Blocked, 2)
	for i, want := range []struct{ pod, reason, advice string }{
		{held.Name, "finalizers: example.com/hold; node Ready: Unknown (NodeStatusUnknown)", "finalizer"},
		{slow.Name, "node Ready: Unknown (NodeStatusUnknown)", "drain.skipWaitForDeleteTimeout"},
	} {
		for _, got := range []operation.BlockedPod{failure.Blocked[i], a.last().Blocked[i]} {
			require.Equal(t, b.namespace+"/"+want.pod, got.Pod)
			require.Regexp(t, "^still terminating [0-9]+s after its grace period; "+regexp.QuoteMeta(want.reason)+"$", got.Reason)
			require.Contains(t, got.Advice, want.advice)
		}
	}

	result, err := b.start(time.Minute, func(r *drain.Request) { r.Settings.SkipWaitForDelete = time.Second }).wait()
	require.NoError(t, err)
	require.Zero(t, result.Evicted, "they were evicted before")
	require.Equal(t, []string{b.namespace + "/" + held.Name, b.namespace + "/" + slow.Name}, result.Skipped)
	require.Less(t, result.Took, 5*time.Second)
	log.requireOnce(t, []core.Pod{slow, held})
	for _, pod := range []core.Pod{slow, held} {
		left, err := b.cluster.Client.CoreV1().Pods(b.namespace).Get(t.Context(), pod.Name, meta.GetOptions{})
		require.NoError(t, err, "it is still there")
		require.NotNil(t, left.DeletionTimestamp)
	}
}
