package activities

import (
	"context"
	"fmt"

	core "k8s.io/api/core/v1"

	"ebb/internal/cluster"
	"ebb/internal/clusterstate"
	"ebb/internal/version"
)

// UnfinishedResult says whether the cordon is the operation's own now.
type UnfinishedResult struct {
	Ours  bool `json:"ours"`
	Lives bool `json:"lives,omitempty"` // the node is Ready at the target: nothing was noted
}

// LeaveCordonedInput names a node and the version that its kubelet should have.
type LeaveCordonedInput struct {
	NodeInput
	Version version.Version `json:"version,omitempty"`
}

// LeaveCordoned notes on a node that its upgrade leaves it cordoned, for whoever starts
// the upgrade again. A node that bears no cordon of this operation is left as it is, and so
// is one whose kubelet lives: it was only not seen to.
func (a *Activities) LeaveCordoned(ctx context.Context, in LeaveCordonedInput) (UnfinishedResult, error) {
	lives := false
	result, err := a.markUnfinished(ctx, in.NodeInput, func(n *core.Node) map[string]any {
		lives = cluster.NodeReady(n) && version.Of(n.Status.NodeInfo.KubeletVersion) == in.Version
		if lives || !n.Spec.Unschedulable || n.Annotations[clusterstate.AnnotationCordonedBy] != in.Operation {
			return nil
		}
		return map[string]any{clusterstate.AnnotationUnfinished: in.Operation}
	})
	result.Lives = lives
	return result, err
}

// TakeCordonOver makes the cordon with which an earlier upgrade has left a node this
// operation's own. A node without one, which somebody has uncordoned, is left as it is.
func (a *Activities) TakeCordonOver(ctx context.Context, in NodeInput) (UnfinishedResult, error) {
	return a.markUnfinished(ctx, in, func(n *core.Node) map[string]any {
		if !n.Spec.Unschedulable || n.Annotations[clusterstate.AnnotationUnfinished] == "" {
			return nil
		}
		marks := map[string]any{clusterstate.AnnotationCordonedBy: in.Operation}
		if n.Annotations[clusterstate.AnnotationDraining] != "" { // it is not drained again
			marks[clusterstate.AnnotationDraining] = in.Operation
		}
		return marks
	})
}

// markUnfinished writes the annotations that mark returns; nil writes nothing.
func (a *Activities) markUnfinished(ctx context.Context, in NodeInput, mark func(*core.Node) map[string]any) (UnfinishedResult, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return UnfinishedResult{}, err
	}
	done, err := editNode(ctx, c, in.Node, func(n *core.Node) map[string]any {
		if annotations := mark(n); annotations != nil {
			return annotate(annotations)
		}
		return nil
	})
	if err != nil {
		return UnfinishedResult{}, fmt.Errorf("mark node %s: %w", in.Node, err)
	}
	return UnfinishedResult{Ours: done}, nil
}
