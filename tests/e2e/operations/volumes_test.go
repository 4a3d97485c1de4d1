package operations

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/clusterstate"
	"ebb/internal/config"
	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/internal/sandbox"
	"ebb/internal/testbed"
	"ebb/internal/workers"
)

// localVolume makes a PersistentVolume that can be used on these nodes, for a claim of its
// name, until the test is over.
func localVolume(t *testing.T, name string, on ...string) {
	t.Helper()
	api := shared.Sandbox.Client().CoreV1().PersistentVolumes()
	_, err := api.Create(t.Context(), &core.PersistentVolume{
		ObjectMeta: meta.ObjectMeta{Name: name},
		Spec: core.PersistentVolumeSpec{
			Capacity: core.ResourceList{core.ResourceStorage: resource.MustParse("1Gi")}, AccessModes: []core.PersistentVolumeAccessMode{core.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: core.PersistentVolumeReclaimRetain,
			ClaimRef:                      &core.ObjectReference{Namespace: sandbox.Namespace, Name: name},
			PersistentVolumeSource:        core.PersistentVolumeSource{Local: &core.LocalVolumeSource{Path: "/none"}},
			NodeAffinity: &core.VolumeNodeAffinity{Required: &core.NodeSelector{NodeSelectorTerms: []core.NodeSelectorTerm{
				{MatchExpressions: []core.NodeSelectorRequirement{{Key: core.LabelHostname, Operator: core.NodeSelectorOpIn, Values: on}}}}}},
		},
	}, meta.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, api.Delete(context.Background(), name, meta.DeleteOptions{})) })
}

// attach says that a volume is attached to a node, until the test is over or detach is called.
func attach(t *testing.T, volume, node string) (detach func()) {
	t.Helper()
	api := shared.Sandbox.Client().StorageV1().VolumeAttachments()
	_, err := api.Create(t.Context(), &storage.VolumeAttachment{
		ObjectMeta: meta.ObjectMeta{Name: volume},
		Spec: storage.VolumeAttachmentSpec{Attacher: "driver.example.com", NodeName: node,
			Source: storage.VolumeAttachmentSource{PersistentVolumeName: &volume}},
	}, meta.CreateOptions{})
	require.NoError(t, err)
	detach = func() { _ = api.Delete(context.Background(), volume, meta.DeleteOptions{}) } // it may have been
	t.Cleanup(detach)
	return detach
}

// The node affinity of a PersistentVolume decides whether the plan names it and --strict
// refuses.
func TestNodeLocalVolumesAreNamedBeforeTheFirstNode(t *testing.T) {
	t.Cleanup(func() { untouched(t) })
	node := webHosts(t)[0]
	strictly := ops.Request{Kind: operation.KindScaleDown, Nodes: []string{node}, Strict: true}
	localVolume(t, "anywhere", webHosts(t)...)
	plan := planOf(t, "scale-down", testbed.ClusterName, "--nodes", node)
	require.NotContains(t, fmt.Sprint(plan.Steps[0].Drain.Objections), "PersistentVolume")

	localVolume(t, "here", node)
	named := "PersistentVolume here (claim default/here) on " + node
	plan = planOf(t, "scale-down", testbed.ClusterName, "--nodes", node)
	require.Contains(t, fmt.Sprint(plan.Steps[0].Drain.Objections), named)
	end := finish(t, begin(t, strictly))
	require.Equal(t, ops.Refused, end.State, text(end))
	require.Contains(t, end.Message, named+": it can be used on this node only")
	verify(t, testbed.OnlyCordoned())
}

// A machine is not destroyed while volumes are attached to it: it waits, then it is an
// Alert. What the drain has left is in the status, in the events and in the result.
func TestScaleDownDoesNotDestroyAMachineWithVolumes(t *testing.T) {
	brief := func(wait time.Duration) {
		require.NoError(t, shared.Configure(func(c *config.Cluster) {
			c.Drain.VolumeDetachTimeout, c.Scale.VolumeDetachTimeout = config.Duration(time.Second), config.Duration(wait)
		}))
	}
	brief(2 * time.Second)
	t.Cleanup(func() { require.NoError(t, shared.Configure(nil)) })
	node, before := webHosts(t)[0], len(nodes(t))
	detach := attach(t, "stuck", node)
	leaves := ops.Request{Kind: operation.KindScaleDown, Nodes: []string{node}}
	left := "node " + node + ": volumes still attached to node " + node + " after its pods have ended: stuck"

	end := finish(t, begin(t, leaves))
	require.Equal(t, ops.Failed, end.State, text(end))
	require.Contains(t, end.Message, "the machine of "+node+" is not destroyed, for volumes are still attached to it: stuck")
	require.Contains(t, end.Message, "removed none, destroyed none, still in the cluster "+node)
	require.Contains(t, end.Status.Warning, left)
	require.Contains(t, told(t, end.ID), "warning: "+left)
	require.Len(t, nodes(t), before)
	verify(t, testbed.OnlyCordoned())
	comesToRest(t)

	brief(time.Minute)
	id := begin(t, leaves)
	until(t, id, func(o ops.Operation) bool { return phase(o, node) == operation.PhaseRemoving })
	detach()
	end = finish(t, id)
	require.Equal(t, ops.Done, end.State, text(end))
	var result operation.ScaleDownResult
	require.NoError(t, json.Unmarshal(end.Result, &result))
	require.Equal(t, operation.ScaleDownResult{Removed: []string{node}, Destroyed: []string{node}, Size: before - 1, Warnings: []string{left}}, result)
	untouched(t)
}

// told returns the texts of the events of an operation.
func told(t *testing.T, id string) (texts []string) {
	t.Helper()
	require.NoError(t, shared.Ops.Events(t.Context(), id, ops.EventFilter{}, func(e ops.Event) error {
		texts = append(texts, e.Text)
		return nil
	}))
	return texts
}

// comesToRest has the reconciler look at the cluster until it is Running again.
func comesToRest(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	handle := shared.Client.ScheduleClient().GetHandle(ctx, workers.ReconcilerID(testbed.ClusterName))
	require.NoError(t, testbed.Poll(ctx, func() (bool, error) {
		if state(t) == clusterstate.Running {
			return true, nil
		}
		return false, handle.Trigger(ctx, triggerNow)
	}))
}
