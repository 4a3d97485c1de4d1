package cluster

import (
	"testing"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/clusterstate"
)

func TestCordonedBy(t *testing.T) {
	by := func(manager, fields string) meta.ManagedFieldsEntry {
		return meta.ManagedFieldsEntry{Manager: manager, FieldsV1: meta.NewFieldsV1(fields)}
	}
	const cordon = `{"f:spec":{"f:unschedulable":{}}}`
	const mark = `{"f:metadata":{"f:annotations":{"f:ebb/cordoned-by":{}}}}`
	for _, c := range []struct {
		name     string
		cordoned bool
		mark     string
		managers []meta.ManagedFieldsEntry
		want     string
		stale    bool
	}{
		{name: "schedulable"},
		{name: "cordoned by a person", cordoned: true, managers: []meta.ManagedFieldsEntry{by("kubectl-cordon", cordon)}},
		{name: "cordoned by Ebb", cordoned: true, mark: "drain-1", managers: []meta.ManagedFieldsEntry{by("kubelet", `{"f:spec":{"f:podCIDR":{}}}`), by("ebb", cordon)}, want: "drain-1"},
		{name: "uncordoned by a person", mark: "drain-1", managers: []meta.ManagedFieldsEntry{by("ebb", mark)}, stale: true},
		{name: "and cordoned again", cordoned: true, mark: "drain-1", managers: []meta.ManagedFieldsEntry{by("ebb", mark), by("kubectl-cordon", cordon)}, stale: true},
		{name: "a person wants Ebb's cordon to stay", cordoned: true, mark: "drain-1", managers: []meta.ManagedFieldsEntry{by("ebb", cordon), by("gitops", cordon)}, stale: true},
		{name: "nobody knows who set it", cordoned: true, mark: "drain-1", managers: []meta.ManagedFieldsEntry{by("ebb", mark), by("odd", "{"), {Manager: "empty"}}, want: "drain-1"},
	} {
		n := &core.Node{ObjectMeta: meta.ObjectMeta{ManagedFields: c.managers}, Spec: core.NodeSpec{Unschedulable: c.cordoned}}
		if c.mark != "" {
			n.Annotations = map[string]string{clusterstate.AnnotationCordonedBy: c.mark}
		}
		require.Empty(t, DrainedBy(n), c.name)
		require.Equal(t, c.want, CordonedBy(n), c.name)
		require.Equal(t, c.want, PolicyNode(n).CordonedBy, c.name)
		require.Equal(t, c.stale, StaleMark(n), c.name)
		meta.SetMetaDataAnnotation(&n.ObjectMeta, clusterstate.AnnotationDraining, "drain-1")
		require.Equal(t, c.want, DrainedBy(n), c.name)
	}
}
