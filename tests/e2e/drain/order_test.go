package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/drain"
	"ebb/internal/operation"
)

func TestDrainEvictsCriticalPodsLast(t *testing.T) {
	b := newFixture(t)
	log := b.record()
	dns := b.deploy("a-dns", 2, func(p *core.PodTemplateSpec) { p.Spec.PriorityClassName = "system-cluster-critical" })
	web := b.deploy("web", 2, slowToStop(3*time.Second))
	result, err := b.start(time.Minute).wait()
	require.NoError(t, err)
	require.Equal(t, 4, result.Evicted)

	var first, then []string
	var last, critical time.Time
	for _, e := range log.evictions() {
		if len(first) < len(web) {
			first, last = append(first, string(e.pod)), e.at
			continue
		}
		if then = append(then, string(e.pod)); critical.IsZero() {
			critical = e.at
		}
	}
	require.ElementsMatch(t, uids(web), first)
	require.ElementsMatch(t, uids(dns), then)
	require.GreaterOrEqual(t, critical.Sub(last), 2900*time.Millisecond, "not before the others have ended")
	begin := strings.Index(result.Output, "evicting pod "+b.namespace+"/a-dns")
	for _, p := range web {
		ended := strings.Index(result.Output, "pod "+b.namespace+"/"+p.Name+" evicted")
		require.True(t, ended >= 0 && ended < begin, result.Output)
	}
}

func TestDrainWaitsForVolumes(t *testing.T) {
	b := newFixture(t)
	b.volume("data")
	b.volume("logs")
	b.deploy("db", 1, claiming("data"))
	b.daemon("agent", claiming("logs"))
	b.attach("data")
	b.attach("logs")
	attachments := b.cluster.Client.StorageV1().VolumeAttachments()

	a := b.start(time.Minute)
	a.until(t, "it waits for the volume", func(p operation.DrainProgress) bool {
		return strings.HasSuffix(p.Output, "waiting for volumes to be detached: "+b.namespace+"-data")
	})
	require.Equal(t, 1, a.last().Gone, "the pod that used it has ended")
	require.NoError(t, attachments.Delete(t.Context(), b.namespace+"-data", meta.DeleteOptions{}))
	detached := time.Now()
	result, err := a.wait()
	require.NoError(t, err)
	require.Less(t, time.Since(detached), time.Second, "the watch says when")
	require.Empty(t, result.Warnings, "the volume of the DaemonSet's pod may stay")

	b.attach("data")
	result, err = b.start(time.Minute, func(r *drain.Request) { r.Settings.VolumeDetachTimeout = 2 * time.Second }).wait()
	require.NoError(t, err)
	require.Equal(t, []string{"volumes still attached to node " + b.node + " after its pods have ended: " + b.namespace + "-data"}, result.Warnings)
	require.InDelta(t, 2, result.Took.Seconds(), 1)
}

// volume makes a claim and the volume it is bound to, <namespace>-<claim>.
func (b *fixture) volume(claim string) {
	b.t.Helper()
	name, none := b.namespace+"-"+claim, ""
	size := core.ResourceList{core.ResourceStorage: resource.MustParse("1Gi")}
	modes := []core.PersistentVolumeAccessMode{core.ReadWriteMany}
	api := b.cluster.Client.CoreV1()
	_, err := api.PersistentVolumes().Create(b.t.Context(), &core.PersistentVolume{
		ObjectMeta: meta.ObjectMeta{Name: name},
		Spec: core.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes, PersistentVolumeReclaimPolicy: core.PersistentVolumeReclaimRetain,
			ClaimRef:               &core.ObjectReference{Namespace: b.namespace, Name: claim},
			PersistentVolumeSource: core.PersistentVolumeSource{HostPath: &core.HostPathVolumeSource{Path: "/none"}},
		},
	}, meta.CreateOptions{})
	require.NoError(b.t, err)
	b.t.Cleanup(func() {
		require.NoError(b.t, api.PersistentVolumes().Delete(context.Background(), name, meta.DeleteOptions{}))
	})
	_, err = api.PersistentVolumeClaims(b.namespace).Create(b.t.Context(), &core.PersistentVolumeClaim{
		ObjectMeta: meta.ObjectMeta{Name: claim},
		Spec: core.PersistentVolumeClaimSpec{
			AccessModes: modes, VolumeName: name, StorageClassName: &none, Resources: core.VolumeResourceRequirements{Requests: size},
		},
	}, meta.CreateOptions{})
	require.NoError(b.t, err)
}

// attach says that the volume of a claim is attached to the node.
func (b *fixture) attach(claim string) {
	b.t.Helper()
	name := b.namespace + "-" + claim
	api := b.cluster.Client.StorageV1().VolumeAttachments()
	_, err := api.Create(b.t.Context(), &storage.VolumeAttachment{
		ObjectMeta: meta.ObjectMeta{Name: name},
		Spec: storage.VolumeAttachmentSpec{
			Attacher: "driver.example.com", NodeName: b.node, Source: storage.VolumeAttachmentSource{PersistentVolumeName: &name},
		},
	}, meta.CreateOptions{})
	require.NoError(b.t, err)
	b.t.Cleanup(func() {
		_ = api.Delete(context.Background(), name, meta.DeleteOptions{}) // the test may have deleted it
	})
}
