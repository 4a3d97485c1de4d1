package activities

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"ebb/internal/etcd"
	"ebb/internal/inspect"
	"ebb/internal/policy"
)

// LeaveEtcdInput names the control plane that leaves.
type LeaveEtcdInput struct {
	Cluster string      `json:"cluster"`
	Node    policy.Node `json:"node"`
}

// LeaveEtcdResult says whether it was in etcd still.
type LeaveEtcdResult struct {
	Removed bool `json:"removed,omitempty"` // its member was there, and is not any more
}

// LeaveEtcd sees to it that a control plane is no member of etcd any more before its machine
// is destroyed: kubeadm reset ends well also where it could not leave, and a dead member
// counts for the quorum. The member is removed through a control plane that stays. An etcd
// that is not on the control planes is left alone.
func (a *Activities) LeaveEtcd(ctx context.Context, in LeaveEtcdInput) (result LeaveEtcdResult, err error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return LeaveEtcdResult{}, err
	}
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return LeaveEtcdResult{}, err
	}
	var failures []error
	for _, via := range policy.ReadyControlPlanes(nodes, in.Node.Name) {
		_, err := inspect.ThroughEtcd(ctx, c, via, a.Log, func(access etcd.ClientConfig) (err error) {
			result.Removed, err = etcd.RemoveMember(ctx, access, in.Node.Name)
			return err
		})
		if err == nil || ctx.Err() != nil {
			return result, err
		}
		a.Log.Warn("etcd cannot be reached", zap.String("cluster", in.Cluster), zap.String("through", via.Name), zap.Error(err))
		failures = append(failures, err)
	}
	if len(failures) == 0 {
		failures = append(failures, errors.New("no other control plane is Ready"))
	}
	return LeaveEtcdResult{}, fmt.Errorf("it is not known whether control plane %s has left etcd, so that its machine is not destroyed: %w (etcdctl member list)",
		in.Node.Name, errors.Join(failures...))
}
