package activities

import (
	"context"
	"errors"
	"fmt"

	"go.temporal.io/sdk/activity"
	"go.uber.org/zap"

	"ebb/internal/cluster"
	"ebb/internal/clusterstate"
	"ebb/internal/inspect"
	"ebb/internal/lease"
	"ebb/internal/operation"
	"ebb/internal/policy"
	"ebb/internal/version"
)

// ClaimInput asks for a cluster on behalf of an operation.
type ClaimInput struct {
	Cluster       string             `json:"cluster"`
	Operation     string             `json:"operation"`
	State         clusterstate.State `json:"state"` // Scaling, Upgrading, Draining or Recovering
	version.Route                    // of an upgrade

	// Machines is what is known of the machines, which a retry of an upgrade asks for. Nil,
	// as earlier versions of Ebb have it: they are asked for in this one activity.
	Machines *MachineStates `json:"machines,omitempty"`
}

// MachineStates is what is known of the machines of a cluster.
type MachineStates struct {
	Asked bool     `json:"asked,omitempty"` // false: nothing is
	Down  []string `json:"down,omitempty"`  // nodes whose machine is stopped or gone
}

// AskMachines names the nodes whose machines are to be asked for.
type AskMachines struct {
	Nodes []policy.Node `json:"nodes"`
	Infra InfraCalls    `json:"infra"`
}

// ClaimResult says what the operation was given.
type ClaimResult struct {
	From      clusterstate.State `json:"from"`                // the state a rollback goes back to
	TakenOver string             `json:"takenOver,omitempty"` // the dead operation that had the cluster
	Retry     bool               `json:"retry,omitempty"`     // an upgrade that goes on where one stopped
	Next      version.Version    `json:"next,omitempty"`      // of an upgrade: the stop of its route that comes first

	// Ask is set when nothing was decided yet: Claim is to be called again, with the states
	// of these machines.
	Ask *AskMachines `json:"ask,omitempty"`
}

// errAsk ends a claim that cannot be decided without the states of the machines.
var errAsk = errors.New("the machines have to be asked for")

// Claim takes the cluster for an operation, or is refused with the reason: the
// operation that has it, or why this upgrade is not accepted. It takes the place
// of a holder whose workflow is over. Marks of cordons that are no more are taken off nodes.
func (a *Activities) Claim(ctx context.Context, in ClaimInput) (ClaimResult, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return ClaimResult{}, err
	}
	engine, err := a.Engine.Identity(ctx)
	if err != nil {
		return ClaimResult{}, fmt.Errorf("identify the engine: %w", err)
	}
	claim := lease.Claim{
		Operation: in.Operation, Run: runOf(ctx), Engine: engine, To: in.State,
		Dead: func(ctx context.Context, r clusterstate.Record) (bool, error) {
			return a.holderDead(ctx, in.Cluster, r, engine)
		},
	}
	claim.Accept = func(r clusterstate.Record) (version.Version, error) { return a.accept(ctx, c, r, in) }
	claimed, err := a.store(c).Acquire(ctx, claim)
	if errors.Is(err, errAsk) {
		ask, err := askMachines(ctx, c)
		return ClaimResult{Ask: ask}, err
	}
	if err != nil {
		return ClaimResult{}, fmt.Errorf("cluster %s: %w", in.Cluster, err)
	}
	a.clean(ctx, c)
	retry := in.State == clusterstate.Upgrading && claimed.From == clusterstate.Alert
	// The record says what comes next, also when the answer to an earlier claim was lost.
	return ClaimResult{From: claimed.From, TakenOver: claimed.TakenOver, Retry: retry, Next: claimed.Target}, nil
}

// holderDead asks the engine whether the holder's workflow is over. A holder on
// another engine cannot be asked and counts as alive.
func (a *Activities) holderDead(ctx context.Context, cluster string, r clusterstate.Record, engine string) (bool, error) {
	if r.Engine != engine {
		return false, fmt.Errorf("%w: %s on another Temporal engine (%s, this one is %s), so Ebb cannot tell whether it is alive; "+
			"if it is gone for good: ebb clusters clear %s --holder-is-gone %s --reason TEXT",
			lease.ErrHeld, r.Holder, r.Engine, engine, cluster, r.Holder)
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

// accept decides whether the cluster may go to the state that is asked for, and
// returns the version that an upgrade goes to first.
func (a *Activities) accept(ctx context.Context, c *cluster.Cluster, r clusterstate.Record, in ClaimInput) (version.Version, error) {
	switch in.State {
	case clusterstate.Recovering:
		if r.State != clusterstate.Alert {
			return "", &policy.Refusal{Reason: fmt.Sprintf("it is in state %s: only one in Alert recovers", r.State)}
		}
		return "", nil
	case clusterstate.Upgrading:
		return acceptUpgrade(ctx, c, r, in)
	default:
		return "", nil
	}
}

func acceptUpgrade(ctx context.Context, c *cluster.Cluster, r clusterstate.Record, in ClaimInput) (version.Version, error) {
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return "", err
	}
	facts := policy.UpgradeFacts{Record: r, Nodes: nodes, Route: in.Route}
	retry := r.State == clusterstate.Alert
	switch {
	case retry && in.Machines == nil:
		facts.Down, err = inspect.DownMachines(ctx, c, nodes)
	case retry && in.Machines.Asked:
		facts.Down = in.Machines.Down
	}
	if err != nil {
		return "", err
	}
	accepted, err := policy.AcceptUpgrade(facts)
	if err == nil && retry && in.Machines != nil && !in.Machines.Asked {
		err = errAsk
	}
	return accepted.Next, err
}

func askMachines(ctx context.Context, c *cluster.Cluster) (*AskMachines, error) {
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	calls, err := infraCalls(c)
	return &AskMachines{Nodes: nodes, Infra: calls}, err
}

// ReleaseInput gives a cluster back.
type ReleaseInput struct {
	Cluster   string             `json:"cluster"`
	Operation string             `json:"operation"`
	State     clusterstate.State `json:"state,omitempty"` // empty = the state it was claimed from
	Message   string             `json:"message,omitempty"`
	Version   version.Version    `json:"version,omitempty"` // what every node is at after an upgrade
}

// runOf returns the run ID of the workflow that an activity belongs to.
func runOf(ctx context.Context) string {
	if !activity.IsActivity(ctx) {
		return ""
	}
	return activity.GetInfo(ctx).WorkflowExecution.RunID
}

// ReleaseResult says whether there was something to give back.
type ReleaseResult struct {
	Held       bool `json:"held"`                 // false: the operation did not have the cluster, and nothing was written
	Unattended bool `json:"unattended,omitempty"` // it is in Alert, and its reconciler could not be resumed
}

// Release gives the cluster back. An operation that does not have it changes nothing.
func (a *Activities) Release(ctx context.Context, in ReleaseInput) (ReleaseResult, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return ReleaseResult{}, err
	}
	state, err := a.store(c).Release(ctx, lease.Outcome{
		Operation: in.Operation, Run: runOf(ctx), To: in.State, Message: in.Message, Version: in.Version,
	})
	if errors.Is(err, lease.ErrLost) {
		a.Log.Warn("nothing to release", zap.Error(err))
		return ReleaseResult{}, nil
	}
	if err != nil {
		return ReleaseResult{}, err
	}
	result := ReleaseResult{Held: true}
	if state == clusterstate.Alert {
		if err := a.Engine.Reconcile(ctx, in.Cluster, true); err != nil { // the lock is released all the same
			a.Log.Warn("the reconciler could not be resumed", zap.String("cluster", in.Cluster), zap.Error(err))
			result.Unattended = true
		}
	}
	return result, nil
}

// AdvanceInput says what an upgrade in hops has reached and where it goes next.
type AdvanceInput struct {
	Cluster   string          `json:"cluster"`
	Operation string          `json:"operation"`
	Version   version.Version `json:"version"` // every node is at it
	Target    version.Version `json:"target"`  // the next hop, or the target
}

// AdvanceResult is empty.
type AdvanceResult struct{}

// Advance records that one hop of an upgrade is complete and the next begins.
func (a *Activities) Advance(ctx context.Context, in AdvanceInput) (AdvanceResult, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return AdvanceResult{}, err
	}
	err = a.store(c).Advance(ctx, in.Operation, in.Version, in.Target)
	if errors.Is(err, lease.ErrLost) {
		return AdvanceResult{}, permanent(operation.TypeRefused, err)
	}
	return AdvanceResult{}, err
}
