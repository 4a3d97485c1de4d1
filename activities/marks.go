package activities

import (
	"context"
	"time"

	"go.uber.org/zap"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/cluster"
	"ebb/internal/clusterstate"
	"ebb/internal/wait"
)

// annotate is the patch that gives a node annotations; nil removes one.
func annotate(annotations map[string]any) map[string]any {
	return map[string]any{"metadata": map[string]any{"annotations": annotations}}
}

// withoutMark is the patch that takes the marks of an operation off a node.
func withoutMark() map[string]any {
	return annotate(map[string]any{
		clusterstate.AnnotationCordonedBy: nil, clusterstate.AnnotationDraining: nil, clusterstate.AnnotationUnfinished: nil,
	})
}

const (
	markInterval = time.Second      // between tries to mark a node
	markTimeout  = 10 * time.Second // an API server that restarts is back before
)

// markDraining marks a node that the operation has cordoned as being drained: its endpoints
// take no new traffic from then on if others can. That is a help and no condition: when it
// cannot be written by the deadline of the drain, or within markTimeout, the pods leave all
// the same, and their end says it a little later.
func (a *Activities) markDraining(ctx context.Context, c *cluster.Cluster, in NodeInput, deadline time.Time) {
	ctx, cancel := context.WithTimeout(ctx, min(markTimeout, deadline.Sub(a.Now())))
	defer cancel()
	var last error
	err := wait.Poll(ctx, markInterval, func() (bool, error) {
		_, last = editNode(ctx, c, in.Node, func(n *core.Node) map[string]any {
			if cluster.CordonedBy(n) != in.Operation || cluster.DrainedBy(n) == in.Operation {
				return nil
			}
			return annotate(map[string]any{clusterstate.AnnotationDraining: in.Operation})
		})
		refused := apierrors.IsNotFound(last) || apierrors.IsForbidden(last) || apierrors.IsInvalid(last) || apierrors.IsBadRequest(last)
		return last == nil || refused, nil
	})
	if (err != nil || last != nil) && !apierrors.IsNotFound(last) {
		a.Log.Warn("the node is drained without its mark: its endpoints take traffic until their pods end", zap.String("node", in.Node), zap.Error(last))
	}
}

// clean takes the marks off nodes that do not bear the cordon of Ebb any more. That it fails
// is no harm: nobody takes such a mark for a cordon.
func (a *Activities) clean(ctx context.Context, c *cluster.Cluster) {
	nodes, err := c.Client.CoreV1().Nodes().List(ctx, meta.ListOptions{})
	if err != nil {
		a.Log.Warn("stale marks of nodes are not looked for", zap.String("cluster", c.Name), zap.Error(err))
		return
	}
	for i := range nodes.Items {
		if !cluster.StaleMark(&nodes.Items[i]) {
			continue
		}
		_, err := editNode(ctx, c, nodes.Items[i].Name, func(n *core.Node) map[string]any {
			if !cluster.StaleMark(n) {
				return nil
			}
			return withoutMark()
		})
		if err != nil {
			a.Log.Warn("the stale mark of a node stays", zap.String("node", nodes.Items[i].Name), zap.Error(err))
		}
	}
}
