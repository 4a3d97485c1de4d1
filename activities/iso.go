package activities

import (
	"context"
	"errors"

	"ebb/internal/infra"
	"ebb/internal/operation"
	"ebb/internal/policy"
	"ebb/internal/version"
)

// AttachISOInput names a node and, through it, its machine, and the version whose
// binaries its upgrade needs.
type AttachISOInput struct {
	Cluster string          `json:"cluster"`
	Node    policy.Node     `json:"node"`
	Version version.Version `json:"version"`
}

// AttachISOResult is empty.
type AttachISOResult struct{}

// AttachISO puts the ISO with the binaries of a version into the drive of a node's machine.
// A machine that has it is done.
func (a *Activities) AttachISO(ctx context.Context, in AttachISOInput) (AttachISOResult, error) {
	provider, iso, err := a.drive(ctx, in.Cluster, in.Version)
	if err != nil {
		return AttachISOResult{}, err
	}
	drive, ok := provider.(infra.ISODrive)
	if !ok {
		return AttachISOResult{}, permanentf(operation.TypeConfig,
			"the ISO of %s cannot be attached to the machine of node %s: infrastructure.provider has to be cloudstack or exec", in.Version, in.Node.Name)
	}
	return AttachISOResult{}, drive.AttachISO(ctx, infra.MachineOf(in.Cluster, in.Node), iso) // it names the node
}

// DetachISOInput names a node and, through it, its machine.
type DetachISOInput struct {
	Cluster string          `json:"cluster"`
	Node    policy.Node     `json:"node"`
	Version version.Version `json:"version,omitempty"` // that was attached; empty = whatever is in the drive
}

// DetachISOResult says whether the machine is without an ISO now.
type DetachISOResult struct {
	Detached bool `json:"detached"` // false: the infrastructure has no drives to empty
}

// DetachISO takes the ISO with the binaries out of the machine of a node, so that
// it is not in the way of the next upgrade, and no late job of this one takes the
// next one's away. A machine that has none, or is gone, is done.
func (a *Activities) DetachISO(ctx context.Context, in DetachISOInput) (DetachISOResult, error) {
	provider, iso, err := a.drive(ctx, in.Cluster, in.Version)
	if err != nil {
		return DetachISOResult{}, err
	}
	drive, ok := provider.(infra.ISODrive)
	if !ok {
		return DetachISOResult{}, nil
	}
	switch err := drive.DetachISO(ctx, infra.MachineOf(in.Cluster, in.Node), iso); {
	case errors.Is(err, errors.ErrUnsupported):
		return DetachISOResult{}, nil
	case err != nil:
		return DetachISOResult{}, err // it names the node
	}
	return DetachISOResult{Detached: true}, nil
}

// drive returns what owns the machines of a cluster, and the ISO of a version there. The
// zero ISO is that of no version.
func (a *Activities) drive(ctx context.Context, name string, v version.Version) (infra.Provider, infra.ISO, error) {
	provider, err := a.provider(ctx, name)
	if err != nil || v == "" {
		return provider, infra.ISO{}, err
	}
	c, err := a.Clusters.Get(ctx, name)
	if err != nil {
		return nil, infra.ISO{}, err
	}
	settings, err := c.Settings()
	return provider, infra.ISO{Version: string(v), Name: settings.Upgrade.ISO}, err
}
