package e2e

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb/internal/drain"
	"ebb/internal/operation"
	"ebb/internal/testbed"
)

type pod = core.Pod

func forced(r *drain.Request) { r.Settings.Force = true }

func TestDrainSelectsPods(t *testing.T) {
	b := newFixture(t)
	b.deploy("web", 1)
	b.deploy("scratch", 1, func(p *core.PodTemplateSpec) {
		p.Spec.Volumes = []core.Volume{{Name: "tmp", VolumeSource: core.VolumeSource{EmptyDir: &core.EmptyDirVolumeSource{}}}}
	})
	b.bare("alone", func(*pod) {})
	b.waitReady("alone", 1)
	agent := b.daemon("agent")

	_, err := b.start(20*time.Second, func(r *drain.Request) { r.Settings.DeleteEmptyDir = false }).wait()
	require.ErrorIs(t, err, drain.ErrForbidden)
	require.ErrorContains(t, err, b.namespace+"/alone: it has no controller")
	require.ErrorContains(t, err, "emptyDir volumes (tmp)")
	b.waitReady("web", 1) // nothing was evicted

	result, err := b.start(time.Minute, forced).wait()
	require.NoError(t, err)
	require.Equal(t, 3, result.Evicted)
	b.requireUnchanged(agent)
}

func TestDrainEvictsFinishedPods(t *testing.T) {
	b := newFixture(t)
	b.finishedJob("report")
	b.budget("report", "report", available(1))
	result, err := b.start(time.Minute).wait()
	require.NoError(t, err)
	require.Equal(t, 1, result.Evicted, "a finished pod needs no flag, and no budget holds it")
	left, err := b.cluster.Client.CoreV1().Pods(b.namespace).List(t.Context(), meta.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, left.Items)
}

// finishedJob makes a Job whose only pod has succeeded on the node.
func (b *fixture) finishedJob(name string) {
	b.t.Helper()
	b.succeed(b.runningJob(name))
}

// runningJob makes a Job and returns its only pod, which runs on the node.
func (b *fixture) runningJob(name string) (pod string) {
	b.t.Helper()
	template := b.template(name)
	template.Spec.RestartPolicy = core.RestartPolicyNever
	_, err := b.cluster.Client.BatchV1().Jobs(b.namespace).Create(b.t.Context(),
		&batch.Job{ObjectMeta: meta.ObjectMeta{Name: name}, Spec: batch.JobSpec{Template: template}}, meta.CreateOptions{})
	require.NoError(b.t, err)
	return b.waitReady(name, 1)[0].Name
}

// succeed has a pod complete, and waits until its Job, if it has one, has counted it.
func (b *fixture) succeed(name string) {
	b.t.Helper()
	pods := b.cluster.Client.CoreV1().Pods(b.namespace)
	done := `{"status":{"phase":"Succeeded","conditions":[{"type":"Ready","status":"False","reason":"PodCompleted"}]}}`
	_, err := pods.Patch(b.t.Context(), name, types.StrategicMergePatchType, []byte(done), meta.PatchOptions{}, "status")
	require.NoError(b.t, err)
	require.Eventually(b.t, func() bool {
		p, err := pods.Get(b.t.Context(), name, meta.GetOptions{})
		return apierrors.IsNotFound(err) || err == nil && len(p.Finalizers) == 0
	}, time.Minute, 100*time.Millisecond, "the Job has counted its pod")
}

// The label of Cluster API and drain.jobs decide whether a pod is evicted, waited for or
// left alone.
func TestDrainWaitsForWhatRunsToCompletion(t *testing.T) {
	b := newFixture(t)
	b.deploy("web", 1)
	b.bare("batch", func(p *pod) { p.Labels["cluster.x-k8s.io/drain"] = "wait-completed" })
	b.bare("pinned", func(p *pod) { p.Labels["cluster.x-k8s.io/drain"] = "skip" })
	pinned := b.waitReady("pinned", 1)[0]
	b.waitReady("batch", 1)
	job := b.runningJob("migrate")

	a := b.start(time.Minute, func(r *drain.Request) { r.Settings.WaitForJobs = true })
	waiting, _ := a.blocked(t, b.namespace+"/batch")
	require.Contains(t, waiting.Reason, "label cluster.x-k8s.io/drain: wait-completed")
	waiting, _ = a.blocked(t, b.namespace+"/"+job)
	require.Contains(t, waiting.Reason, "drain.jobs: wait")
	a.until(t, "web is gone", func(p operation.DrainProgress) bool { return p.Gone == 1 && p.Waiting == 2 })

	b.succeed(job)
	b.succeed("batch")
	result, err := a.wait()
	require.NoError(t, err)
	require.Equal(t, 3, result.Evicted, "those that have completed are evicted as well")
	b.requireUnchanged(pinned)
}

func TestDrainLeavesStaticAndDaemonPodsAlone(t *testing.T) {
	b := newFixture(t)
	b.node = "cp1"
	t.Cleanup(func() { b.cordon(context.Background(), "cp1", false) })
	list := func() (pods []core.Pod) {
		all, err := b.cluster.Client.CoreV1().Pods(meta.NamespaceSystem).List(t.Context(), meta.ListOptions{FieldSelector: "spec.nodeName=cp1"})
		require.NoError(t, err)
		return all.Items
	}
	before := list()
	require.Len(t, before, 5, "four mirror pods and kube-proxy")
	result, err := b.start(20 * time.Second).wait()
	require.NoError(t, err)
	require.Zero(t, result.Evicted+result.Gone)
	for _, p := range before {
		b.requireUnchanged(p)
	}
}

func TestDrainLeavesTheSuccessorOfAStatefulPodAlone(t *testing.T) {
	b := newFixture(t)
	one := int32(1)
	_, err := b.cluster.Client.AppsV1().StatefulSets(b.namespace).Create(t.Context(), &apps.StatefulSet{
		ObjectMeta: meta.ObjectMeta{Name: "db"},
		Spec:       apps.StatefulSetSpec{Replicas: &one, Template: b.template("db"), ServiceName: "db", Selector: labelled("db")},
	}, meta.CreateOptions{})
	require.NoError(t, err)
	old := b.waitReady("db", 1)[0]
	b.budget("db", "db", unavailable(0))
	log := b.record()
	a := b.start(time.Minute)
	a.blocked(t, b.namespace+"/db-0")
	require.Eventually(t, func() bool { return len(log.evictions()) > 0 }, 20*time.Second, 20*time.Millisecond, "its eviction is tried")
	require.NoError(t, b.cluster.Client.CoreV1().Pods(b.namespace).Delete(t.Context(), "db-0", meta.DeleteOptions{}))
	result, err := a.wait()
	require.NoError(t, err)
	require.Zero(t, result.Evicted)
	for _, e := range log.evictions() {
		require.Equal(t, old.UID, e.pod, "this pod and no other")
	}
	require.Eventually(t, func() bool {
		next, err := b.cluster.Client.CoreV1().Pods(b.namespace).Get(t.Context(), "db-0", meta.GetOptions{})
		return err == nil && next.UID != old.UID && next.Spec.NodeName != "" && next.Spec.NodeName != b.node && next.DeletionTimestamp == nil
	}, 20*time.Second, 100*time.Millisecond)
}

func TestDrainWaitsForATerminatingNamespace(t *testing.T) {
	b := newFixture(t)
	b.deploy("web", 2)
	b.budget("web", "web", unavailable(0))
	a := b.start(time.Minute)
	a.blocked(t, b.namespace+"/web")
	err := b.cluster.Client.CoreV1().Namespaces().Delete(t.Context(), b.namespace, meta.DeleteOptions{})
	require.NoError(t, err)
	result, err := a.wait()
	require.NoError(t, err)
	require.Zero(t, result.Evicted)
	b.newNamespace() // for clean to delete
}

func TestDrainReportsAFinalizerThatNeverEnds(t *testing.T) {
	b := newFixture(t)
	held := b.deploy("held", 1)[0]
	held.Finalizers = []string{"example.com/hold"}
	_, err := b.cluster.Client.CoreV1().Pods(b.namespace).Update(t.Context(), &held, meta.UpdateOptions{})
	require.NoError(t, err)
	quick := func(r *drain.Request) { r.Settings.GracePeriod = 1 }
	a := b.start(8*time.Second, quick)
	_, err = a.wait()
	require.ErrorIs(t, err, drain.ErrTimeout)
	require.ErrorContains(t, err, "finalizers: example.com/hold; node Ready: True")
	blocked := a.last().Blocked
	require.Len(t, blocked, 1)
	require.True(t, strings.HasSuffix(blocked[0].Reason, "finalizers: example.com/hold; node Ready: True"), blocked[0].Reason)

	result, err := b.start(20*time.Second, func(r *drain.Request) {
		r.MachineDown, r.Settings.SkipWaitForDelete = true, time.Second
	}).wait()
	require.NoError(t, err)
	require.Equal(t, []string{b.namespace + "/" + held.Name}, result.Skipped)
}

// The garbage collector takes such a pod away, unless it has another owner of a
// kind that is no longer served: then it cannot judge the pod, and leaves it.
func TestDrainOfAPodWhoseDaemonSetIsGone(t *testing.T) {
	b := newFixture(t)
	yes := true
	b.bare("orphan", func(p *pod) {
		p.OwnerReferences = []meta.OwnerReference{
			{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "lost", UID: "0a1b2c3d", Controller: &yes},
			{APIVersion: "example.com/v1", Kind: "Removed", Name: "removed", UID: "4e5f6a7b"},
		}
	})
	orphan := b.waitReady("orphan", 1)[0]
	web := b.deploy("web", 1)

	out, err := b.kubectlDrain()
	require.Error(t, err, out)
	require.Contains(t, out, `daemonsets.apps "lost" not found`)
	_, err = b.start(20 * time.Second).wait()
	require.ErrorIs(t, err, drain.ErrForbidden)
	require.ErrorContains(t, err, b.namespace+"/orphan: its DaemonSet lost does not exist")
	require.ErrorContains(t, err, "drain.force")
	b.requireUnchanged(orphan)
	b.requireUnchanged(web[0])

	out, err = b.kubectlDrain("--force")
	require.NoError(t, err, out)
	require.Contains(t, out, "evicting pod "+b.namespace+"/orphan")
	log := b.record()
	result, err := b.start(time.Minute, forced).wait()
	require.NoError(t, err)
	require.Equal(t, 2, result.Evicted)
	log.requireOnce(t, append(web, orphan))
	_, err = b.cluster.Client.CoreV1().Pods(b.namespace).Get(t.Context(), "orphan", meta.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), err)
}

// kubectlDrain is what kubectl would do.
func (b *fixture) kubectlDrain(flags ...string) (string, error) {
	b.t.Helper()
	kubectl, err := testbed.Binary("kubectl")
	require.NoError(b.t, err)
	args := append([]string{"--kubeconfig", b.box.Kubeconfig(), "--cache-dir", b.t.TempDir(), "drain", b.node,
		"--ignore-daemonsets", "--delete-emptydir-data", "--dry-run=server", "--pod-selector=app"}, flags...)
	out, err := exec.CommandContext(b.t.Context(), kubectl, args...).CombinedOutput() // #nosec G204 -- our own binary
	return string(out), err
}
