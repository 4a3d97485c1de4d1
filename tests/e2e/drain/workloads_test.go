package e2e

import (
	"slices"
	"time"

	"github.com/stretchr/testify/require"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"ebb/internal/sandbox"
)

func (b *fixture) template(app string, change ...func(*core.PodTemplateSpec)) core.PodTemplateSpec {
	p := core.PodTemplateSpec{
		ObjectMeta: meta.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec: core.PodSpec{
			Containers: []core.Container{{Name: "main", Image: "none"}},
			Affinity:   onlyOn(append(slices.Clone(b.others), b.node)...),
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

// slowToStop makes a pod take that long to end.
func slowToStop(delay time.Duration) func(*core.PodTemplateSpec) {
	return func(p *core.PodTemplateSpec) {
		p.Annotations = map[string]string{"sandbox.ebb/delete-delay": delay.String()}
	}
}

func claiming(claim string) func(*core.PodTemplateSpec) {
	return func(p *core.PodTemplateSpec) {
		p.Spec.Volumes = []core.Volume{{Name: "data", VolumeSource: core.VolumeSource{
			PersistentVolumeClaim: &core.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
	}
}

func labelled(app string) *meta.LabelSelector {
	return &meta.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

// deploy makes a Deployment and waits until its pods are ready on the node.
func (b *fixture) deploy(app string, replicas int32, change ...func(*core.PodTemplateSpec)) []core.Pod {
	b.t.Helper()
	b.create(app, replicas, change...)
	return b.waitReady(app, int(replicas))
}

func (b *fixture) create(app string, replicas int32, change ...func(*core.PodTemplateSpec)) {
	b.t.Helper()
	_, err := b.cluster.Client.AppsV1().Deployments(b.namespace).Create(b.t.Context(), &apps.Deployment{
		ObjectMeta: meta.ObjectMeta{Name: app},
		Spec:       apps.DeploymentSpec{Replicas: &replicas, Template: b.template(app, change...), Selector: labelled(app)},
	}, meta.CreateOptions{})
	require.NoError(b.t, err)
}

// daemon makes a DaemonSet and waits for its pod on the node.
func (b *fixture) daemon(app string, change ...func(*core.PodTemplateSpec)) core.Pod {
	b.t.Helper()
	_, err := b.cluster.Client.AppsV1().DaemonSets(b.namespace).Create(b.t.Context(), &apps.DaemonSet{
		ObjectMeta: meta.ObjectMeta{Name: app},
		Spec:       apps.DaemonSetSpec{Template: b.template(app, change...), Selector: labelled(app)},
	}, meta.CreateOptions{})
	require.NoError(b.t, err)
	return b.waitReady(app, 1)[0]
}

func (b *fixture) bare(name string, change func(*core.Pod)) {
	b.t.Helper()
	p := &core.Pod{ObjectMeta: meta.ObjectMeta{Name: name, Labels: map[string]string{"app": name}}, Spec: b.template(name).Spec}
	change(p)
	_, err := b.cluster.Client.CoreV1().Pods(b.namespace).Create(b.t.Context(), p, meta.CreateOptions{})
	require.NoError(b.t, err)
}

// waitReady waits until so many pods of an app are ready on the node.
func (b *fixture) waitReady(app string, n int) []core.Pod {
	b.t.Helper()
	var pods []core.Pod
	require.Eventually(b.t, func() bool {
		list, err := b.cluster.Client.CoreV1().Pods(b.namespace).List(b.t.Context(), meta.ListOptions{LabelSelector: "app=" + app})
		if err != nil {
			return false
		}
		pods = slices.DeleteFunc(list.Items, func(p core.Pod) bool { return !sandbox.PodReady(&p) || p.Spec.NodeName != b.node })
		return len(pods) == n
	}, time.Minute, 100*time.Millisecond, "%d pods of %s ready on %s", n, app, b.node)
	return pods
}

// requireUnchanged makes sure that a pod is still what it was.
func (b *fixture) requireUnchanged(pod core.Pod) {
	b.t.Helper()
	still, err := b.cluster.Client.CoreV1().Pods(pod.Namespace).Get(b.t.Context(), pod.Name, meta.GetOptions{})
	require.NoError(b.t, err)
	require.Equal(b.t, pod.UID, still.UID)
	require.Nil(b.t, still.DeletionTimestamp)
}

// crashing makes a Deployment of one pod that looks as if it crashed again and again.
func (b *fixture) crashing(app string) {
	b.t.Helper()
	b.create(app, 1, func(p *core.PodTemplateSpec) { p.Annotations = map[string]string{"sandbox.ebb/unready": "true"} })
	pods := b.cluster.Client.CoreV1().Pods(b.namespace)
	require.Eventually(b.t, func() bool {
		list, err := pods.List(b.t.Context(), meta.ListOptions{LabelSelector: "app=" + app})
		if err != nil || len(list.Items) != 1 || list.Items[0].Status.Phase != core.PodRunning {
			return false
		}
		p := &list.Items[0]
		p.Status.ContainerStatuses = []core.ContainerStatus{{Name: "main", Image: "none", State: core.ContainerState{
			Waiting: &core.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}}
		_, err = pods.UpdateStatus(b.t.Context(), p, meta.UpdateOptions{})
		return err == nil
	}, time.Minute, 100*time.Millisecond)
}

// budget makes a budget for an app and waits until it has been worked out.
func (b *fixture) budget(name, app string, change func(*policy.PodDisruptionBudgetSpec)) {
	b.t.Helper()
	budgets := b.cluster.Client.PolicyV1().PodDisruptionBudgets(b.namespace)
	spec := policy.PodDisruptionBudgetSpec{Selector: labelled(app)}
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
