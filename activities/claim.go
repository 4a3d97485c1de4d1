package activities

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"ebb/internal/cluster"
	"ebb/internal/clusterstate"
	"ebb/internal/infra"
	"ebb/internal/plan"
)

// ClaimInput asks for a cluster on behalf of an operation.
type ClaimInput struct {
	Cluster   string             `json:"cluster"`
	Operation string             `json:"operation"`
	State     clusterstate.State `json:"state"`            // Scaling, Upgrading, Draining or Recovering
	Target    string             `json:"target,omitempty"` // of an upgrade
	Hops      []string           `json:"hops,omitempty"`   // versions that an upgrade stops at on the way
}

// ClaimResult says what the operation was given.
type ClaimResult struct {
	From      clusterstate.State `json:"from"`                // the state a rollback goes back to
	TakenOver string             `json:"takenOver,omitempty"` // the dead operation that had the cluster
	Retry     bool               `json:"retry,omitempty"`     // an upgrade that goes on where one stopped
	Station   int                `json:"station,omitempty"`   // which hop, or after them the target, it goes to first
}

// Claim takes the cluster for an operation, or is refused with the reason: the
// operation that has it, or why this upgrade is not accepted. It takes the place
// of a holder whose workflow is over.
func (a *Activities) Claim(ctx context.Context, in ClaimInput) (ClaimResult, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return ClaimResult{}, permanent(TypeConfig, err)
	}
	engine, err := a.Engine.Identity(ctx)
	if err != nil {
		return ClaimResult{}, fmt.Errorf("identify the engine: %w", err)
	}
	claim := clusterstate.Claim{
		Operation: in.Operation, Engine: engine, To: in.State,
		Dead: func(ctx context.Context, r clusterstate.Record) (bool, error) { return a.holderDead(ctx, r, engine) },
	}
	var accepted plan.Acceptance
	claim.Accept = func(r clusterstate.Record) (target string, err error) {
		accepted, err = a.accept(ctx, c, r, in)
		return plan.Canonical(append(slices.Clone(in.Hops), in.Target)[accepted.Station]), err
	}
	claimed, err := a.store(c).Acquire(ctx, claim)
	if err != nil {
		return ClaimResult{}, fmt.Errorf("cluster %s: %w", in.Cluster, err)
	}
	retry := in.State == clusterstate.Upgrading && claimed.From == clusterstate.Alert
	return ClaimResult{From: claimed.From, TakenOver: claimed.TakenOver, Retry: retry, Station: station(in, claimed.Target)}, nil
}

// station is where on its way an upgrade is that goes to target next. It goes by
// the record, because a claim whose answer was lost is answered from that.
func station(in ClaimInput, target string) int {
	if at := slices.IndexFunc(in.Hops, func(hop string) bool { return plan.SameVersion(hop, target) }); at >= 0 {
		return at
	}
	return len(in.Hops)
}

// holderDead asks the engine whether the holder's workflow is over. A holder on
// another engine cannot be asked and counts as alive.
func (a *Activities) holderDead(ctx context.Context, r clusterstate.Record, engine string) (bool, error) {
	if r.Engine != engine {
		return false, fmt.Errorf("%w: %s on another Temporal engine (%s, this one is %s), so Ebb cannot tell whether it is alive; "+
			"if it is gone for good, clear spec.holderIdentity of lease %s/%s and set its annotation ebb/state to Alert",
			clusterstate.ErrHeld, r.Holder, r.Engine, engine, clusterstate.Namespace, clusterstate.LeaseName)
	}
	closed, err := a.Engine.Closed(ctx, r.Holder)
	if err != nil {
		return false, fmt.Errorf("ask the engine about the holder %s: %w", r.Holder, err)
	}
	if closed {
		a.Log.Sugar().Warnw("taking over from an operation that is over", "holder", r.Holder, "state", r.State)
	}
	return closed, nil
}

// accept decides whether the cluster may go to the state that is asked for.
func (a *Activities) accept(ctx context.Context, c *cluster.Cluster, r clusterstate.Record, in ClaimInput) (plan.Acceptance, error) {
	switch in.State {
	case clusterstate.Recovering:
		if r.State != clusterstate.Alert {
			return plan.Acceptance{}, &plan.Refusal{Reason: fmt.Sprintf("it is in state %s: only one in Alert recovers", r.State)}
		}
		return plan.Acceptance{}, nil
	case clusterstate.Upgrading:
		return a.acceptUpgrade(ctx, c, r, in)
	default:
		return plan.Acceptance{}, nil
	}
}

func (a *Activities) acceptUpgrade(ctx context.Context, c *cluster.Cluster, r clusterstate.Record, in ClaimInput) (plan.Acceptance, error) {
	nodes, err := listNodes(ctx, c)
	if err != nil {
		return plan.Acceptance{}, err
	}
	facts := plan.UpgradeFacts{Record: r, Nodes: nodes, Hops: in.Hops, Target: in.Target}
	if r.State == clusterstate.Alert {
		if facts.Down, err = downMachines(ctx, c, nodes); err != nil {
			return plan.Acceptance{}, err
		}
	}
	return plan.AcceptUpgrade(facts)
}

func downMachines(ctx context.Context, c *cluster.Cluster, nodes []plan.Node) ([]string, error) {
	provider, err := c.Infra()
	if err != nil {
		return nil, permanent(TypeConfig, err)
	}
	var down []string
	for _, n := range nodes {
		state, err := provider.State(ctx, machineOf(c.Name, n))
		if err != nil {
			return nil, fmt.Errorf("state of the machine of %s: %w", n.Name, err)
		}
		if state == infra.Stopped || state == infra.Gone {
			down = append(down, n.Name)
		}
	}
	return down, nil
}

// ReleaseInput gives a cluster back.
type ReleaseInput struct {
	Cluster   string             `json:"cluster"`
	Operation string             `json:"operation"`
	State     clusterstate.State `json:"state,omitempty"` // empty = the state it was claimed from
	Message   string             `json:"message,omitempty"`
	Version   string             `json:"version,omitempty"` // what every node is at after an upgrade
}

// ReleaseResult says whether there was something to give back.
type ReleaseResult struct {
	Held bool `json:"held"` // false: the operation did not have the cluster, and nothing was written
}

// Release gives the cluster back. An operation that does not have it changes nothing.
func (a *Activities) Release(ctx context.Context, in ReleaseInput) (ReleaseResult, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return ReleaseResult{}, permanent(TypeConfig, err)
	}
	state, err := a.store(c).Finish(ctx, clusterstate.Outcome{
		Operation: in.Operation, To: in.State, Message: in.Message, Version: plan.Canonical(in.Version),
	})
	if errors.Is(err, clusterstate.ErrLost) {
		a.Log.Warn("nothing to release", zap.Error(err))
		return ReleaseResult{}, nil
	}
	if err == nil && state == clusterstate.Alert {
		// Without it the cluster waits in Alert for the retry: no reason to fail the release.
		if err := a.Engine.Reconcile(ctx, in.Cluster, true); err != nil {
			a.Log.Warn("the reconciler could not be started", zap.String("cluster", in.Cluster), zap.Error(err))
		}
	}
	return ReleaseResult{Held: err == nil}, err
}

// AdvanceInput says what an upgrade in hops has reached and where it goes next.
type AdvanceInput struct {
	Cluster   string `json:"cluster"`
	Operation string `json:"operation"`
	Version   string `json:"version"` // every node is at it
	Target    string `json:"target"`  // the next hop, or the target
}

// AdvanceResult is empty.
type AdvanceResult struct{}

// Advance records that one hop of an upgrade is complete and the next begins.
func (a *Activities) Advance(ctx context.Context, in AdvanceInput) (AdvanceResult, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return AdvanceResult{}, permanent(TypeConfig, err)
	}
	err = a.store(c).Advance(ctx, in.Operation, plan.Canonical(in.Version), plan.Canonical(in.Target))
	if errors.Is(err, clusterstate.ErrLost) {
		return AdvanceResult{}, permanent(TypeRefused, err)
	}
	return AdvanceResult{}, err
}
