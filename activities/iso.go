package activities

import (
	"context"

	"ebb/internal/infra"
	"ebb/internal/policy"
)

// DetachISOInput names a node and, through it, its machine.
type DetachISOInput struct {
	Cluster string      `json:"cluster"`
	Node    policy.Node `json:"node"`
}

// DetachISOResult says whether the machine is without an ISO now.
type DetachISOResult struct {
	Detached bool `json:"detached"` // false: the infrastructure has no drives to empty
}

// DetachISO takes the ISO with the binaries out of the machine of a node, so that
// it is not in the way of the next upgrade, and no late job of this one takes the
// next one's away. A machine that has none, or is gone, is done.
func (a *Activities) DetachISO(ctx context.Context, in DetachISOInput) (DetachISOResult, error) {
	provider, err := a.provider(ctx, in.Cluster)
	if err != nil {
		return DetachISOResult{}, err
	}
	detacher, ok := provider.(infra.ISODetacher)
	if !ok {
		return DetachISOResult{}, nil
	}
	if err := detacher.DetachISO(ctx, infra.MachineOf(in.Cluster, in.Node)); err != nil {
		return DetachISOResult{}, err // it names the node
	}
	return DetachISOResult{Detached: true}, nil
}
