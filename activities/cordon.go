package activities

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb/internal/cluster"
	"ebb/internal/clusterstate"
	"ebb/internal/lease"
	"ebb/internal/operation"
	"ebb/internal/version"
)

// NodeInput names a node of a cluster and the operation that acts on it.
type NodeInput struct {
	Cluster   string `json:"cluster"`
	Operation string `json:"operation"`
	Node      string `json:"node"`
}

// CordonResult says whose cordon is on the node.
type CordonResult struct {
	Ours bool `json:"ours"` // false: the node was unschedulable before, and stays so
}

// Cordon makes a node unschedulable and marks the cordon as the operation's own,
// in one write. A node that is unschedulable already is left as it is.
func (a *Activities) Cordon(ctx context.Context, in NodeInput) (CordonResult, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return CordonResult{}, err
	}
	result := CordonResult{}
	_, err = editNode(ctx, c, in.Node, func(n *core.Node) map[string]any {
		if n.Spec.Unschedulable {
			result.Ours = cluster.CordonedBy(n) == in.Operation
			return nil
		}
		result.Ours = true
		patch := annotate(map[string]any{clusterstate.AnnotationCordonedBy: in.Operation, clusterstate.AnnotationDraining: nil})
		patch["spec"] = map[string]any{"unschedulable": true}
		return patch
	})
	if apierrors.IsNotFound(err) {
		return CordonResult{}, permanentf(operation.TypeConfig, "cordon node %s: it is not in cluster %s any more", in.Node, in.Cluster)
	}
	if err != nil {
		return CordonResult{}, fmt.Errorf("cordon node %s: %w", in.Node, err)
	}
	return result, nil
}

// UncordonResult says what was done.
type UncordonResult struct {
	Uncordoned bool `json:"uncordoned"` // false: the cordon was not the operation's own, or the node is gone
}

// Uncordon takes back the operation's own cordon, in one write. A node that bears
// no cordon of this operation is left as it is, without the operation's mark; a node
// that is gone is done.
func (a *Activities) Uncordon(ctx context.Context, in NodeInput) (UncordonResult, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return UncordonResult{}, err
	}
	done, err := uncordon(ctx, c, in.Node, in.Operation)
	return UncordonResult{Uncordoned: done}, err
}

func uncordon(ctx context.Context, c *cluster.Cluster, node, operation string) (bool, error) {
	ours := false
	written, err := editNode(ctx, c, node, func(n *core.Node) map[string]any {
		if n.Annotations[clusterstate.AnnotationCordonedBy] != operation {
			return nil
		}
		patch := withoutMark()
		if ours = !cluster.StaleMark(n); ours {
			patch["spec"] = map[string]any{"unschedulable": nil}
		}
		return patch
	})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("uncordon node %s: %w", node, err)
	}
	return written && ours, nil
}

// UncordonAllInput names operations that are over and left their cordons behind.
type UncordonAllInput struct {
	Cluster   string `json:"cluster"`
	Operation string `json:"operation"` // one, or several separated by commas
	Holder    string `json:"holder"`    // the operation that took their place
}

// UncordonAllResult lists the nodes that were uncordoned.
type UncordonAllResult struct {
	Nodes []string `json:"nodes,omitempty"`
}

// UncordonAll takes back every cordon of operations that died before they could
// do so themselves, and notes that they are cleaned up after.
func (a *Activities) UncordonAll(ctx context.Context, in UncordonAllInput) (UncordonAllResult, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return UncordonAllResult{}, err
	}
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return UncordonAllResult{}, err
	}
	var result UncordonAllResult
	for _, n := range nodes {
		if n.CordonedBy == "" || !slices.Contains(clusterstate.Names(in.Operation), n.CordonedBy) {
			continue
		}
		done, err := uncordon(ctx, c, n.Name, n.CordonedBy)
		if err != nil {
			return UncordonAllResult{}, err
		}
		if done {
			result.Nodes = append(result.Nodes, n.Name)
		}
	}
	err = a.store(c).Cleaned(ctx, in.Holder, in.Operation)
	if errors.Is(err, lease.ErrLost) {
		return UncordonAllResult{}, permanent(operation.TypeRefused, err)
	}
	return result, err
}

// RecordVersionInput names the version that a node was brought to.
type RecordVersionInput struct {
	NodeInput
	Version version.Version `json:"version"`
}

// RecordVersionResult is empty.
type RecordVersionResult struct{}

// RecordVersion writes the version a node is at, after it was upgraded,
// uncordoned and found Ready.
func (a *Activities) RecordVersion(ctx context.Context, in RecordVersionInput) (RecordVersionResult, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return RecordVersionResult{}, err
	}
	_, err = editNode(ctx, c, in.Node, func(n *core.Node) map[string]any {
		if n.Annotations[clusterstate.AnnotationNodeVersion] == string(in.Version) {
			return nil
		}
		return annotate(map[string]any{clusterstate.AnnotationNodeVersion: in.Version})
	})
	if err != nil {
		return RecordVersionResult{}, fmt.Errorf("record the version of node %s: %w", in.Node, err)
	}
	return RecordVersionResult{}, nil
}

// editNode reads a node, asks change for a merge patch of what it read, and
// writes it only if the node is still as it was read; otherwise it starts over.
// A nil patch writes nothing. It reports whether something was written.
func editNode(ctx context.Context, c *cluster.Cluster, name string, change func(*core.Node) map[string]any) (bool, error) {
	nodes := c.Client.CoreV1().Nodes()
	for {
		node, err := nodes.Get(ctx, name, meta.GetOptions{})
		if err != nil {
			return false, err
		}
		patch := change(node)
		if patch == nil {
			return false, nil
		}
		patch["metadata"].(map[string]any)["resourceVersion"] = node.ResourceVersion
		body, err := json.Marshal(patch)
		if err != nil {
			return false, err
		}
		_, err = nodes.Patch(ctx, name, types.MergePatchType, body, meta.PatchOptions{FieldManager: cluster.FieldManager})
		if !apierrors.IsConflict(err) {
			return err == nil, err
		}
	}
}
