package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/drain"
)

func TestDrainEndsWhenAnOperatorUncordonsTheNode(t *testing.T) {
	b := newDrainBed(t)
	b.deploy("zero", 1)
	b.budget("zero", "zero", unavailable(0))
	a := b.start(time.Minute)
	a.blocked(t, b.namespace+"/zero")
	b.cordon(t.Context(), b.node, false)
	_, err := a.wait()
	require.ErrorIs(t, err, drain.ErrUncordoned)
}

func TestDrainEndsWhenItsNodeObjectIsDeleted(t *testing.T) {
	b := newDrainBed(t)
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

// The machine loses its power while a pod is terminating on it: no kubelet will
// ever end that pod.
func TestDrainOfANodeThatGoesDown(t *testing.T) {
	b := newDrainBed(t)
	slow := b.deploy("slow", 1, slowToStop(30*time.Second))[0]
	grace := func(r *drain.Request) { r.Settings.GracePeriod = 1 }
	a := b.start(10*time.Second, grace)
	a.evicted(t, 1)
	b.powerOff()
	_, err := a.wait()
	require.ErrorIs(t, err, drain.ErrTimeout, "by default it is waited for all the same")
	require.ErrorContains(t, err, "node Ready: Unknown (NodeStatusUnknown)")
	var failure *drain.Error
	require.ErrorAs(t, err, &failure)
	require.Len(t, failure.Blocked, 1)
	require.Equal(t, b.namespace+"/"+slow.Name, failure.Blocked[0].Pod)
	require.Contains(t, failure.Blocked[0].Advice, "drain.skipWaitForDeleteTimeout")

	result, err := b.start(time.Minute, func(r *drain.Request) { r.Settings.SkipWaitForDelete = time.Second }).wait()
	require.NoError(t, err)
	require.Zero(t, result.Evicted, "it was evicted before")
	require.Equal(t, []string{b.namespace + "/" + slow.Name}, result.Skipped)
	require.Less(t, result.Took, 5*time.Second)
}
