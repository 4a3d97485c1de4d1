package activities

import (
	"context"

	"go.uber.org/zap"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/cluster"
	"ebb/internal/clusterstate"
)

// withoutMark is the patch that takes the mark of an operation off a node.
func withoutMark() map[string]any {
	return map[string]any{"metadata": map[string]any{"annotations": map[string]any{
		clusterstate.AnnotationCordonedBy: nil, clusterstate.AnnotationUnfinished: nil,
	}}}
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
