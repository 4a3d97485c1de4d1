package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	flowcontrol "k8s.io/api/flowcontrol/v1"
	rbac "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/config"
	"ebb/internal/drain"
)

// One attempt outlasts two restarts: the API server is away for a few seconds
// each time, with evictions and watches under way.
func TestDrainOutlastsRestartsOfTheAPIServer(t *testing.T) {
	b := newLoneBed(t)
	tape := b.record()
	b.create("web", 5)
	b.create("slow", 4, slowToStop(8*time.Second))
	web, slow := b.waitReady("web", 5), b.waitReady("slow", 4)
	b.budget("web", "web", unavailable(1))
	a := b.start(2 * time.Minute)
	for _, n := range []int{5, 7} {
		a.evicted(t, n)
		require.NoError(t, shared.box.RestartAPIServer(t.Context(), time.Second))
	}
	result, err := a.wait()
	require.NoError(t, err)
	require.Equal(t, 9, result.Gone)
	tape.requireOnce(b, append(web, slow...))
	require.Contains(t, result.Output, "no answer from the API server, trying again")
	t.Logf("took %s, %d evictions sent for 9 pods", result.Took, len(tape.evictions()))
}

// A watch that is closed and cannot be taken up again is made anew.
func TestDrainOutlastsExpiredWatches(t *testing.T) {
	b := newDrainBed(t)
	tape := b.record()
	web := b.deploy("web", 4)
	b.budget("web", "web", unavailable(1))
	a := b.start(time.Minute)
	for _, n := range []int{1, 3} {
		a.evicted(t, n)
		tape.expire()
	}
	result, err := a.wait()
	require.NoError(t, err)
	require.Equal(t, 4, result.Evicted)
	tape.requireOnce(b, web)
	tape.mu.Lock()
	defer tape.mu.Unlock()
	require.Positive(t, tape.gone, "watches were refused")
	t.Logf("took %s, %d watches answered with 410", result.Took, tape.gone)
}

const throttledUser = "ebb-e2e-throttled"

// The API server's priority and fairness turns all evictions away for a while.
func TestDrainKeepsRetryAfter(t *testing.T) {
	b := newDrainBed(t)
	stop := b.throttle()
	tape := b.recordAs(throttledUser)
	web := b.deploy("web", 3)
	require.Eventually(t, func() bool { // the configuration is in force
		err := b.cluster.Client.PolicyV1().RESTClient().Post().AbsPath("/api/v1").Namespace(b.namespace).Resource("pods").Name("none").
			SubResource("eviction").MaxRetries(0).Do(t.Context()).Error()
		return apierrors.IsTooManyRequests(err)
	}, time.Minute, 100*time.Millisecond)
	tape.clear()

	a := b.start(time.Minute)
	turnedAway := func() int { return len(tape.evictions()) }
	require.Eventually(t, func() bool { return turnedAway() >= 6 }, time.Minute, 20*time.Millisecond, "two rounds")
	stop()
	result, err := a.wait()
	require.NoError(t, err)
	require.Equal(t, 3, result.Evicted)
	tape.requireOnce(b, web)
	require.Contains(t, result.Output, "the API server has too much to do, trying again in 1s")
	var last time.Time
	for i, e := range tape.evictions() {
		if i%3 == 0 { // a round
			require.GreaterOrEqual(t, e.at.Sub(last), time.Second, "Retry-After: 1")
		}
		last = e.at
	}
}

// throttle makes the API server answer 429 to all evictions of a user, until stopped.
func (b *drainBed) throttle() (stop func()) {
	b.t.Helper()
	const name = throttledUser
	none := int32(0)
	flow, access := b.cluster.Client.FlowcontrolV1(), b.cluster.Client.RbacV1().ClusterRoleBindings()
	_, err := access.Create(b.t.Context(), &rbac.ClusterRoleBinding{
		ObjectMeta: meta.ObjectMeta{Name: name},
		RoleRef:    rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbac.Subject{{APIGroup: rbac.GroupName, Kind: rbac.UserKind, Name: name}},
	}, meta.CreateOptions{})
	require.NoError(b.t, err)
	_, err = flow.PriorityLevelConfigurations().Create(b.t.Context(), &flowcontrol.PriorityLevelConfiguration{
		ObjectMeta: meta.ObjectMeta{Name: name},
		Spec: flowcontrol.PriorityLevelConfigurationSpec{
			Type: flowcontrol.PriorityLevelEnablementLimited,
			Limited: &flowcontrol.LimitedPriorityLevelConfiguration{
				NominalConcurrencyShares: &none, BorrowingLimitPercent: &none, LimitResponse: flowcontrol.LimitResponse{Type: flowcontrol.LimitResponseTypeReject},
			},
		},
	}, meta.CreateOptions{})
	require.NoError(b.t, err)
	_, err = flow.FlowSchemas().Create(b.t.Context(), &flowcontrol.FlowSchema{
		ObjectMeta: meta.ObjectMeta{Name: name},
		Spec: flowcontrol.FlowSchemaSpec{
			PriorityLevelConfiguration: flowcontrol.PriorityLevelConfigurationReference{Name: name}, MatchingPrecedence: 100,
			Rules: []flowcontrol.PolicyRulesWithSubjects{{
				Subjects:      []flowcontrol.Subject{{Kind: flowcontrol.SubjectKindUser, User: &flowcontrol.UserSubject{Name: name}}},
				ResourceRules: []flowcontrol.ResourcePolicyRule{{Verbs: []string{"create"}, APIGroups: []string{"*"}, Resources: []string{"pods/eviction"}, Namespaces: []string{"*"}}},
			}},
		},
	}, meta.CreateOptions{})
	require.NoError(b.t, err)
	stop = func() { _ = flow.FlowSchemas().Delete(context.Background(), name, meta.DeleteOptions{}) } // twice: by the test and after it
	b.t.Cleanup(func() {
		stop()
		require.NoError(b.t, flow.PriorityLevelConfigurations().Delete(context.Background(), name, meta.DeleteOptions{}))
		require.NoError(b.t, access.Delete(context.Background(), name, meta.DeleteOptions{}))
	})
	return stop
}

func TestDrainGoesOnWhereAnotherStopped(t *testing.T) {
	b := newDrainBed(t)
	tape := b.record()
	web := b.deploy("web", 3)
	b.budget("web", "web", unavailable(1))
	b.ready()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := drain.Run(ctx, drain.Request{Cluster: b.cluster, Node: b.node, Settings: drain.NewSettings(config.Drain{}),
		Deadline: time.Now().Add(time.Minute), Report: func(p drain.Progress) {
			if p.Evicted == 1 {
				cancel()
			}
		}})
	require.ErrorIs(t, err, context.Canceled)
	result, err := b.start(time.Minute).wait()
	require.NoError(t, err)
	require.Equal(t, 2, result.Evicted, "the first pod is not evicted again")
	tape.requireOnce(b, web)
}
