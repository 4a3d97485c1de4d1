package drain

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"ebb/internal/cluster"
)

// volume returns a volume claimed by app/<name> that can be used where a label has a value.
func volume(name, label string, values ...string) *core.PersistentVolume {
	return &core.PersistentVolume{
		TypeMeta: meta.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"}, ObjectMeta: meta.ObjectMeta{Name: name},
		Spec: core.PersistentVolumeSpec{
			ClaimRef: &core.ObjectReference{Namespace: "app", Name: name},
			NodeAffinity: &core.VolumeNodeAffinity{Required: &core.NodeSelector{NodeSelectorTerms: []core.NodeSelectorTerm{
				{MatchExpressions: []core.NodeSelectorRequirement{{Key: label, Operator: core.NodeSelectorOpIn, Values: values}}}}}},
		},
	}
}

// labelledNode returns a node of a zone.
func labelledNode(name, zone string) *core.Node {
	n := cordonedNode()
	n.Name, n.Labels = name, map[string]string{core.LabelHostname: name, core.LabelTopologyZone: zone}
	return n
}

func TestVolumesThatCanBeUsedOnOneNodeOnly(t *testing.T) {
	nodes := []*core.Node{labelledNode("w1", "a"), labelledNode("w2", "b"), labelledNode("w3", "b")}
	unclaimed, everywhere := volume("unclaimed", core.LabelHostname, "w1"), volume("nfs", core.LabelHostname, "w1")
	unclaimed.Spec.ClaimRef, everywhere.Spec.NodeAffinity = nil, nil
	local := nodeLocal([]*core.PersistentVolume{
		volume("z-here", core.LabelHostname, "w1"), volume("a-here", core.LabelHostname, "w1"), volume("there", core.LabelHostname, "w2"),
		volume("two", core.LabelHostname, "w1", "w2"), volume("only-of-zone", core.LabelTopologyZone, "a"), volume("zone", core.LabelTopologyZone, "b"),
		volume("gone", core.LabelHostname, "w9"), volume("broken", "a b", "x"), unclaimed, everywhere,
	}, nodes)
	names := map[string][]string{}
	for node, volumes := range local {
		for _, v := range volumes {
			names[node] = append(names[node], v.Name)
		}
	}
	require.Equal(t, map[string][]string{"w1": {"a-here", "only-of-zone", "z-here"}, "w2": {"there"}}, names)
}

// watchOf returns the watch of a cluster of these objects.
func watchOf(t *testing.T, objects ...runtime.Object) *cluster.Watch {
	t.Helper()
	c := cluster.New("test", fake.NewClientset(objects...), nil, zap.NewNop())
	t.Cleanup(c.Close)
	w, err := c.Watch(t.Context())
	require.NoError(t, err)
	return w
}

func TestForecastNamesLocalVolumes(t *testing.T) {
	w := watchOf(t, labelledNode(node, "a"), labelledNode("w2", "a"), volume("pv-1", core.LabelHostname, node), volume("pv-2", core.LabelTopologyZone, "a"))
	want := []Objection{{Subject: "PersistentVolume pv-1 (claim app/pv-1) on w1", Reason: reasonLocal}}
	f := NewForecaster(w, Settings{})
	require.Equal(t, want, f.Node(node).AllObjections())
	require.Equal(t, want, f.LocalVolumes(node))
	require.Empty(t, f.Node("w2").AllObjections())
}

// claimed returns a claim that is bound to the volume of its name.
func claimed(name string) *core.PersistentVolumeClaim {
	return &core.PersistentVolumeClaim{
		TypeMeta: meta.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"}, ObjectMeta: meta.ObjectMeta{Namespace: "app", Name: name},
		Spec: core.PersistentVolumeClaimSpec{VolumeName: name},
	}
}

func using(claim string) func(*core.Pod) {
	return func(p *core.Pod) {
		p.Spec.Volumes = []core.Volume{{Name: "data", VolumeSource: core.VolumeSource{
			PersistentVolumeClaim: &core.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
	}
}

// Volumes keep a machine from being destroyed, but those of pods that stay with it.
func TestAttachedVolumes(t *testing.T) {
	ofDaemonSet := func(p *core.Pod) { p.OwnerReferences = []meta.OwnerReference{controller("DaemonSet", "agent")} }
	w := watchOf(t, cordonedNode(), agentDaemonSet(), claimed("data"), claimed("logs"), claimed("shared"),
		newPod("db", using("data")), newPod("agent-1", using("logs"), ofDaemonSet),
		newPod("agent-2", using("shared"), ofDaemonSet), newPod("web", using("shared")),
		attachment("1", "data"), attachment("2", "logs"), attachment("3", "shared"), attachment("4", "unused"))
	require.Equal(t, []string{"data (used by app/db)", "shared (used by app/web)", "unused"}, Attached(w, node, Settings{}))
	require.Empty(t, Attached(w, "w2", Settings{}))
}
