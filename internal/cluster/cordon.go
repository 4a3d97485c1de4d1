package cluster

import (
	"encoding/json"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/clusterstate"
)

// FieldManager is the name under which Ebb writes to nodes.
const FieldManager = "ebb"

// CordonedBy returns the operation whose cordon a node bears; "" = it is schedulable, or the
// cordon is somebody else's. The mark of an operation does not make a cordon its own: after a
// kubectl uncordon, which leaves the mark, the node may have been cordoned again by hand. So
// the API server's record of who has set the field decides, where the node has one.
func CordonedBy(n *core.Node) string {
	if !n.Spec.Unschedulable || setByOthers(n) {
		return ""
	}
	return n.Annotations[clusterstate.AnnotationCordonedBy]
}

// DrainedBy returns the operation that has begun to drain a node; "" = none has, or the node does
// not bear that operation's cordon, or not any more.
func DrainedBy(n *core.Node) string {
	if by := CordonedBy(n); n.Annotations[clusterstate.AnnotationDraining] == by {
		return by
	}
	return ""
}

// StaleMark reports whether a node is marked as cordoned by an operation whose cordon it does
// not bear any more, as kubectl uncordon leaves it.
func StaleMark(n *core.Node) bool {
	return n.Annotations[clusterstate.AnnotationCordonedBy] != "" && CordonedBy(n) == ""
}

// setByOthers reports whether somebody besides Ebb has set spec.unschedulable as it is.
func setByOthers(n *core.Node) bool {
	for _, entry := range n.ManagedFields {
		if entry.Manager != FieldManager && sets(entry) {
			return true
		}
	}
	return false
}

// sets reports whether spec.unschedulable is among the fields of a manager.
func sets(entry meta.ManagedFieldsEntry) bool {
	var fields struct {
		Spec struct {
			Unschedulable *struct{} `json:"f:unschedulable"`
		} `json:"f:spec"`
	}
	return entry.FieldsV1 != nil && json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) == nil && fields.Spec.Unschedulable != nil
}
