package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"ebb/internal/cluster"
	"ebb/internal/config"
	"ebb/internal/drain"
)

// drainBed is a namespace of its own on the shared cluster, for one test. Its
// pods run on w1, which will be drained, and can only go to w2, which is cordoned
// until then.
type drainBed struct {
	t         *testing.T
	cluster   *cluster.Cluster
	node      string
	namespace string
}

func newDrainBed(t *testing.T) *drainBed {
	t.Helper()
	b := &drainBed{t: t, cluster: clusterFor(t), node: "w1"}
	ns, err := b.cluster.Client.CoreV1().Namespaces().Create(t.Context(),
		&core.Namespace{ObjectMeta: meta.ObjectMeta{GenerateName: "drain-"}}, meta.CreateOptions{})
	require.NoError(t, err)
	b.namespace = ns.Name
	b.cordon(t.Context(), "w2", true)
	t.Cleanup(b.clean)
	return b
}

// clean leaves the node as it was found, for the next test.
func (b *drainBed) clean() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client := b.cluster.Client
	b.cordon(ctx, "w1", false)
	b.cordon(ctx, "w2", false)
	require.NoError(b.t, client.CoreV1().Namespaces().Delete(ctx, b.namespace, meta.DeleteOptions{}))
	require.Eventually(b.t, func() bool {
		pods, err := client.CoreV1().Pods(b.namespace).List(ctx, meta.ListOptions{})
		if err != nil {
			return false
		}
		for i := range pods.Items {
			if p := &pods.Items[i]; len(p.Finalizers) > 0 {
				p.Finalizers = nil
				_, _ = client.CoreV1().Pods(p.Namespace).Update(ctx, p, meta.UpdateOptions{}) // again at the next look
			}
		}
		return len(pods.Items) == 0
	}, time.Minute, 200*time.Millisecond)
}

func (b *drainBed) cordon(ctx context.Context, node string, on bool) {
	b.t.Helper()
	patch := fmt.Sprintf(`{"spec":{"unschedulable":%v}}`, on)
	_, err := b.cluster.Client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(patch), meta.PatchOptions{})
	require.NoError(b.t, err)
}

// attempt is one drain that runs, with all its reports.
type attempt struct {
	started time.Time
	done    chan struct{}
	result  drain.Result
	err     error

	mu      sync.Mutex
	reports []timed
}

type timed struct {
	at time.Time
	drain.Progress
}

// start cordons the node and drains it; change edits the request.
func (b *drainBed) start(timeout time.Duration, change ...func(*drain.Request)) *attempt {
	b.t.Helper()
	_, err := b.cluster.Watch(b.t.Context()) // the first use of a cluster is not what is measured
	require.NoError(b.t, err)
	b.cordon(b.t.Context(), "w2", false)
	b.cordon(b.t.Context(), b.node, true)
	a := &attempt{started: time.Now(), done: make(chan struct{})}
	req := drain.Request{
		Cluster: b.cluster, Node: b.node, Operation: "e2e", Settings: drain.NewSettings(config.Drain{}), Deadline: a.started.Add(timeout),
		Report: func(p drain.Progress) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.reports = append(a.reports, timed{time.Now(), p})
		},
	}
	for _, f := range change {
		f(&req)
	}
	go func() {
		defer close(a.done)
		a.result, a.err = drain.Run(b.t.Context(), req)
	}()
	b.t.Cleanup(func() { <-a.done })
	return a
}

func (a *attempt) wait() (drain.Result, error) {
	<-a.done
	return a.result, a.err
}

// blocked waits until a report says of a pod with this prefix that it is
// blocked, and returns that entry and how long the drain took to say it.
func (a *attempt) blocked(t *testing.T, prefix string) (found drain.BlockedPod, after time.Duration) {
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

func template(app string, change ...func(*core.PodTemplateSpec)) core.PodTemplateSpec {
	p := core.PodTemplateSpec{
		ObjectMeta: meta.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec: core.PodSpec{
			Containers: []core.Container{{Name: "main", Image: "none"}},
			Affinity:   onlyOn("w1", "w2"),
		},
	}
	for _, f := range change {
		f(&p)
	}
	return p
}

func onlyOn(nodes ...string) *core.Affinity {
	return &core.Affinity{NodeAffinity: &core.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &core.NodeSelector{
		NodeSelectorTerms: []core.NodeSelectorTerm{{MatchExpressions: []core.NodeSelectorRequirement{
			{Key: core.LabelHostname, Operator: core.NodeSelectorOpIn, Values: nodes}}}}}}}
}

func (b *drainBed) deploy(app string, replicas int32, change ...func(*core.PodTemplateSpec)) {
	b.t.Helper()
	_, err := b.cluster.Client.AppsV1().Deployments(b.namespace).Create(b.t.Context(), &apps.Deployment{
		ObjectMeta: meta.ObjectMeta{Name: app},
		Spec: apps.DeploymentSpec{Replicas: &replicas, Template: template(app, change...),
			Selector: &meta.LabelSelector{MatchLabels: map[string]string{"app": app}}},
	}, meta.CreateOptions{})
	require.NoError(b.t, err)
	b.waitReady(app, int(replicas))
}

// waitReady waits until so many pods of an app are ready on the node.
func (b *drainBed) waitReady(app string, n int) []core.Pod {
	b.t.Helper()
	var pods []core.Pod
	require.Eventually(b.t, func() bool {
		list, err := b.cluster.Client.CoreV1().Pods(b.namespace).List(b.t.Context(), meta.ListOptions{LabelSelector: "app=" + app})
		require.NoError(b.t, err)
		pods = nil
		for _, p := range list.Items {
			for _, c := range p.Status.Conditions {
				if c.Type == core.PodReady && c.Status == core.ConditionTrue && p.Spec.NodeName == b.node {
					pods = append(pods, p)
				}
			}
		}
		return len(pods) == n
	}, time.Minute, 100*time.Millisecond, "pods of %s ready on %s", app, b.node)
	return pods
}

// budget makes a budget for an app and waits until it has been worked out.
func (b *drainBed) budget(name, app string, change func(*policy.PodDisruptionBudgetSpec)) {
	b.t.Helper()
	budgets := b.cluster.Client.PolicyV1().PodDisruptionBudgets(b.namespace)
	spec := policy.PodDisruptionBudgetSpec{Selector: &meta.LabelSelector{MatchLabels: map[string]string{"app": app}}}
	change(&spec)
	_, err := budgets.Create(b.t.Context(), &policy.PodDisruptionBudget{ObjectMeta: meta.ObjectMeta{Name: name}, Spec: spec}, meta.CreateOptions{})
	require.NoError(b.t, err)
	require.Eventually(b.t, func() bool {
		got, err := budgets.Get(b.t.Context(), name, meta.GetOptions{})
		return err == nil && got.Status.ObservedGeneration == got.Generation && got.Status.ExpectedPods > 0
	}, time.Minute, 50*time.Millisecond)
}

func unavailable(n int32) func(*policy.PodDisruptionBudgetSpec) {
	return func(s *policy.PodDisruptionBudgetSpec) { v := intstr.FromInt32(n); s.MaxUnavailable = &v }
}

func available(n int32) func(*policy.PodDisruptionBudgetSpec) {
	return func(s *policy.PodDisruptionBudgetSpec) { v := intstr.FromInt32(n); s.MinAvailable = &v }
}

func TestDrainFollowsItsBudget(t *testing.T) {
	b := newDrainBed(t)
	b.deploy("web", 3)
	b.budget("web", "web", unavailable(1))
	result, err := b.start(time.Minute).wait()
	require.NoError(t, err)
	require.Equal(t, 3, result.Evicted)
	require.Equal(t, 3, strings.Count(result.Output, "evicting pod "+b.namespace), "no eviction was refused")
	budget, err := b.cluster.Client.PolicyV1().PodDisruptionBudgets(b.namespace).Get(t.Context(), "web", meta.GetOptions{})
	require.NoError(t, err)
	require.GreaterOrEqual(t, budget.Status.CurrentHealthy, int32(2))
}

func TestDrainNamesWhatCannotWork(t *testing.T) {
	b := newDrainBed(t)
	b.deploy("twice", 1)
	b.budget("one", "twice", unavailable(1))
	b.budget("two", "twice", unavailable(1))
	b.deploy("zero", 1)
	b.budget("zero", "zero", unavailable(0))
	b.deploy("all", 1)
	b.budget("all", "all", available(1))
	b.deploy("crash", 1)
	b.crash("crash")
	b.budget("crash", "crash", unavailable(1))
	b.deploy("fine", 1)

	a := b.start(12 * time.Second)
	for app, want := range map[string]drain.BlockedPod{
		"twice": {Budget: b.namespace + "/one, " + b.namespace + "/two", Reason: "2 budgets select it", Advice: "selectors"},
		"zero":  {Budget: b.namespace + "/zero", Reason: "maxUnavailable: 0", Advice: "maxUnavailable"},
		"all":   {Budget: b.namespace + "/all", Reason: "minAvailable: 1", Advice: "minAvailable"},
		"crash": {Budget: b.namespace + "/crash", Reason: "CrashLoopBackOff", Advice: "unhealthyPodEvictionPolicy: AlwaysAllow"},
	} {
		got, after := a.blocked(t, b.namespace+"/"+app)
		require.Less(t, after, time.Second, app)
		require.Equal(t, want.Budget, got.Budget)
		require.Contains(t, got.Reason, want.Reason)
		require.Contains(t, got.Advice, want.Advice)
	}
	result, err := a.wait()
	require.ErrorIs(t, err, drain.ErrTimeout)
	require.Zero(t, result.Evicted)
	var failure *drain.Error
	require.ErrorAs(t, err, &failure)
	require.Len(t, failure.Blocked, 4, "the pod without a budget has gone")
	require.InDelta(t, 12, time.Since(a.started).Seconds(), 1.5)
	for _, text := range []string{"drain node w1", b.namespace + "/one", b.namespace + "/two", "pod " + b.namespace + "/fine"} {
		require.ErrorContains(t, err, text)
	}
}

// crash makes the pods of an app look like ones that crash again and again.
func (b *drainBed) crash(app string) {
	for _, p := range b.waitReady(app, 1) {
		for i := range p.Status.Conditions {
			if p.Status.Conditions[i].Type == core.PodReady {
				p.Status.Conditions[i].Status = core.ConditionFalse
			}
		}
		p.Status.ContainerStatuses = []core.ContainerStatus{{Name: "main", Image: "none", State: core.ContainerState{
			Waiting: &core.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}}
		_, err := b.cluster.Client.CoreV1().Pods(b.namespace).UpdateStatus(b.t.Context(), &p, meta.UpdateOptions{})
		require.NoError(b.t, err)
	}
}

func TestDrainLeavesTheSuccessorOfAStatefulPodAlone(t *testing.T) {
	b := newDrainBed(t)
	one := int32(1)
	_, err := b.cluster.Client.AppsV1().StatefulSets(b.namespace).Create(t.Context(), &apps.StatefulSet{
		ObjectMeta: meta.ObjectMeta{Name: "db"},
		Spec: apps.StatefulSetSpec{Replicas: &one, Template: template("db"), ServiceName: "db",
			Selector: &meta.LabelSelector{MatchLabels: map[string]string{"app": "db"}}},
	}, meta.CreateOptions{})
	require.NoError(t, err)
	old := b.waitReady("db", 1)[0]
	b.budget("db", "db", unavailable(0))
	a := b.start(time.Minute)
	a.blocked(t, b.namespace+"/db-0")
	require.NoError(t, b.cluster.Client.CoreV1().Pods(b.namespace).Delete(t.Context(), "db-0", meta.DeleteOptions{}))
	result, err := a.wait()
	require.NoError(t, err)
	require.Zero(t, result.Evicted)
	require.Eventually(t, func() bool {
		next, err := b.cluster.Client.CoreV1().Pods(b.namespace).Get(t.Context(), "db-0", meta.GetOptions{})
		return err == nil && next.UID != old.UID && next.Spec.NodeName != "" && next.Spec.NodeName != b.node && next.DeletionTimestamp == nil
	}, 20*time.Second, 100*time.Millisecond)
}

func TestDrainReportsAFinalizerThatNeverEnds(t *testing.T) {
	b := newDrainBed(t)
	b.deploy("held", 1)
	held := b.waitReady("held", 1)[0]
	held.Finalizers = []string{"example.com/hold"}
	_, err := b.cluster.Client.CoreV1().Pods(b.namespace).Update(t.Context(), &held, meta.UpdateOptions{})
	require.NoError(t, err)
	quick := func(r *drain.Request) { r.Settings.GracePeriod = 1 }
	_, err = b.start(8*time.Second, quick).wait()
	require.ErrorIs(t, err, drain.ErrTimeout)
	require.ErrorContains(t, err, "finalizers: example.com/hold; node Ready: True")

	result, err := b.start(20*time.Second, func(r *drain.Request) {
		r.MachineDown, r.Settings.SkipWaitForDelete = true, time.Second
	}).wait()
	require.NoError(t, err)
	require.Equal(t, []string{b.namespace + "/" + held.Name}, result.Skipped)
}

func TestDrainEndsWhenTheNodeChanges(t *testing.T) {
	t.Run("an operator uncordons it", func(t *testing.T) {
		b := newDrainBed(t)
		b.deploy("zero", 1)
		b.budget("zero", "zero", unavailable(0))
		a := b.start(time.Minute)
		a.blocked(t, b.namespace+"/zero")
		b.cordon(t.Context(), b.node, false)
		_, err := a.wait()
		require.ErrorIs(t, err, drain.ErrUncordoned)
	})
	t.Run("its Node object is deleted", func(t *testing.T) {
		b := newDrainBed(t)
		nodes := b.cluster.Client.CoreV1().Nodes()
		_, err := nodes.Create(t.Context(), &core.Node{ObjectMeta: meta.ObjectMeta{Name: "leaving"}}, meta.CreateOptions{})
		require.NoError(t, err)
		b.node = "leaving"
		b.bare("held", func(p *core.Pod) { p.Spec.NodeName, p.Finalizers = "leaving", []string{"example.com/hold"} })
		a := b.start(time.Minute, func(r *drain.Request) { r.Settings.Force = true })
		require.Eventually(t, func() bool {
			p, err := b.cluster.Client.CoreV1().Pods(b.namespace).Get(t.Context(), "held", meta.GetOptions{})
			return err == nil && p.DeletionTimestamp != nil
		}, 20*time.Second, 50*time.Millisecond)
		require.NoError(t, nodes.Delete(t.Context(), "leaving", meta.DeleteOptions{}))
		result, err := a.wait()
		require.NoError(t, err)
		require.True(t, result.NodeGone)
	})
}

func (b *drainBed) bare(name string, change func(*core.Pod)) {
	b.t.Helper()
	p := &core.Pod{ObjectMeta: meta.ObjectMeta{Name: name}, Spec: template(name).Spec}
	change(p)
	_, err := b.cluster.Client.CoreV1().Pods(b.namespace).Create(b.t.Context(), p, meta.CreateOptions{})
	require.NoError(b.t, err)
}

func TestDrainSelectsPods(t *testing.T) {
	b := newDrainBed(t)
	b.deploy("web", 1)
	b.deploy("scratch", 1, func(p *core.PodTemplateSpec) {
		p.Spec.Volumes = []core.Volume{{Name: "tmp", VolumeSource: core.VolumeSource{EmptyDir: &core.EmptyDirVolumeSource{}}}}
	})
	b.bare("alone", func(p *core.Pod) { p.Labels = map[string]string{"app": "alone"} })
	b.waitReady("alone", 1)
	_, err := b.cluster.Client.AppsV1().DaemonSets(b.namespace).Create(t.Context(), &apps.DaemonSet{
		ObjectMeta: meta.ObjectMeta{Name: "agent"},
		Spec:       apps.DaemonSetSpec{Template: template("agent"), Selector: &meta.LabelSelector{MatchLabels: map[string]string{"app": "agent"}}},
	}, meta.CreateOptions{})
	require.NoError(t, err)
	agent := b.waitReady("agent", 1)[0]

	_, err = b.start(20*time.Second, func(r *drain.Request) { r.Settings.DeleteEmptyDir = false }).wait()
	require.ErrorIs(t, err, drain.ErrRefused)
	require.ErrorContains(t, err, b.namespace+"/alone: it has no controller")
	require.ErrorContains(t, err, "emptyDir volumes (tmp)")
	b.waitReady("web", 1) // nothing was evicted

	result, err := b.start(time.Minute, func(r *drain.Request) { r.Settings.Force = true }).wait()
	require.NoError(t, err)
	require.Equal(t, 3, result.Evicted)
	still, err := b.cluster.Client.CoreV1().Pods(b.namespace).Get(t.Context(), agent.Name, meta.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, agent.UID, still.UID)
}

func TestDrainGivesUpOnPodsThatComeBack(t *testing.T) {
	b := newDrainBed(t)
	b.deploy("clingy", 1, func(p *core.PodTemplateSpec) {
		p.Spec.Tolerations = []core.Toleration{{Operator: core.TolerationOpExists}}
		p.Spec.Affinity = onlyOn("w1")
	})
	_, err := b.start(time.Minute).wait()
	require.ErrorIs(t, err, drain.ErrReturning)
	require.ErrorContains(t, err, "come back to the cordoned node (3 times so far)")
}

func TestDrainWaitsForATerminatingNamespace(t *testing.T) {
	b := newDrainBed(t)
	b.deploy("web", 2)
	b.budget("web", "web", unavailable(0))
	a := b.start(time.Minute)
	a.blocked(t, b.namespace+"/web")
	err := b.cluster.Client.CoreV1().Namespaces().Delete(t.Context(), b.namespace, meta.DeleteOptions{})
	require.NoError(t, err)
	result, err := a.wait()
	require.NoError(t, err)
	require.Zero(t, result.Evicted)
	b.leaveNamespace()
}

// leaveNamespace gives clean another namespace to delete.
func (b *drainBed) leaveNamespace() {
	ns, err := b.cluster.Client.CoreV1().Namespaces().Create(b.t.Context(),
		&core.Namespace{ObjectMeta: meta.ObjectMeta{GenerateName: "drain-"}}, meta.CreateOptions{})
	require.NoError(b.t, err)
	b.namespace = ns.Name
}

func TestDrainGoesOnWhereAnotherStopped(t *testing.T) {
	b := newDrainBed(t)
	b.deploy("web", 3)
	b.budget("web", "web", unavailable(1))
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	_, err := b.cluster.Watch(t.Context())
	require.NoError(t, err)
	b.cordon(t.Context(), "w2", false)
	b.cordon(t.Context(), b.node, true)
	go func() {
		_, err := drain.Run(ctx, drain.Request{Cluster: b.cluster, Node: b.node, Settings: drain.NewSettings(config.Drain{}),
			Deadline: time.Now().Add(time.Minute), Report: func(p drain.Progress) {
				if p.Evicted == 1 {
					cancel()
				}
			}})
		first <- err
	}()
	require.ErrorIs(t, <-first, context.Canceled)
	result, err := b.start(time.Minute).wait()
	require.NoError(t, err)
	require.Equal(t, 2, result.Evicted, "the first pod is not evicted again")
}
