package inspect

import (
	"context"
	"fmt"

	"ebb/internal/cluster"
	"ebb/internal/policy"
	"ebb/internal/tail"
)

// ControlPlane returns what keeps the control plane from doing without one of its
// nodes, except (empty = none yet): another one that is not Ready or is cordoned, and not
// by this operation, or an API server that does not reach etcd.
func ControlPlane(ctx context.Context, c *cluster.Cluster, except, operation string) (faults []string, err error) {
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	faults = policy.UnfitControlPlanes(nodes, except, operation)
	body, err := c.Client.CoreV1().RESTClient().Get().AbsPath("/readyz/etcd").DoRaw(ctx)
	if err != nil {
		faults = append(faults, fmt.Sprintf("the API server cannot reach etcd: %v %s", err, tail.Of(string(body), 200)))
	}
	return faults, nil
}
