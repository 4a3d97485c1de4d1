package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb/internal/operation"
)

// blockedSaying waits until a report says this of a blocked pod, and returns that entry.
func (a *attempt) blockedSaying(t *testing.T, words ...string) (found operation.BlockedPod) {
	t.Helper()
	a.until(t, words[0], func(p operation.DrainProgress) bool {
		for _, b := range p.Blocked {
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(b.Reason, w) }) {
				found = b
				return true
			}
		}
		return false
	})
	return found
}

// A budget does not recover because the replacement fits nowhere: that is what is said, in
// the scheduler's own words. With room, the drain goes on.
func TestDrainSaysThatAReplacementFitsNowhere(t *testing.T) {
	b := newFixture(t)
	web := b.deploy("web", 3, func(p *core.PodTemplateSpec) {
		p.Spec.Affinity = onlyOn(b.node)
		p.Spec.Containers[0].Resources.Requests = core.ResourceList{core.ResourceCPU: resource.MustParse("100m")}
	})
	b.budget("web", "web", unavailable(1))
	a := b.start(2 * time.Minute)
	said := a.blockedSaying(t, "needs 2 healthy pods and has 2; web-", " is Pending: ", "nodes are available", "node(s) were unschedulable")
	require.Equal(t, b.namespace+"/web", said.Budget)
	require.Contains(t, said.Advice, "make room")
	// Somebody deletes the budget and, with it, what the replacement was needed for.
	require.NoError(t, b.box.Client().PolicyV1().PodDisruptionBudgets(b.namespace).Delete(t.Context(), "web", meta.DeleteOptions{}))
	result, err := a.wait()
	require.NoError(t, err)
	require.Equal(t, len(web), result.Gone)
}

// A quota that refuses the replacement is named, in the API server's own words.
func TestDrainNamesTheQuotaThatRefusesAReplacement(t *testing.T) {
	b := newFixture(t)
	b.deploy("web", 3)
	b.budget("web", "web", unavailable(1))
	b.quota("2")
	a := b.start(4 * time.Minute)
	said := a.blockedSaying(t, "needs 2 healthy pods and has 2; ReplicaSet web-", " cannot create its replacement: ", "exceeded quota: small")
	require.Contains(t, said.Advice, "raise the quota")
	_, err := b.box.Client().CoreV1().ResourceQuotas(b.namespace).Patch(t.Context(), "small", types.MergePatchType,
		[]byte(`{"spec":{"hard":{"pods":"10"}}}`), meta.PatchOptions{})
	require.NoError(t, err)
	result, err := a.wait()
	require.NoError(t, err)
	require.Equal(t, 3, result.Evicted)
}

// quota limits the pods of the namespace, and waits until those that there are count.
func (b *fixture) quota(pods string) {
	b.t.Helper()
	quotas := b.box.Client().CoreV1().ResourceQuotas(b.namespace)
	_, err := quotas.Create(b.t.Context(), &core.ResourceQuota{
		ObjectMeta: meta.ObjectMeta{Name: "small"},
		Spec:       core.ResourceQuotaSpec{Hard: core.ResourceList{core.ResourcePods: resource.MustParse(pods)}},
	}, meta.CreateOptions{})
	require.NoError(b.t, err)
	require.Eventually(b.t, func() bool {
		q, err := quotas.Get(b.t.Context(), "small", meta.GetOptions{})
		return err == nil && q.Status.Used.Pods().Value() > 0
	}, time.Minute, 100*time.Millisecond)
}
