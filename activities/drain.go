package activities

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.temporal.io/sdk/activity"

	"ebb/internal/drain"
	"ebb/internal/operation"
)

// DrainSettingsInput names the cluster whose settings are wanted.
type DrainSettingsInput struct {
	Cluster string `json:"cluster"`
}

// DrainSettings are the settings of the next attempt to drain a node.
type DrainSettings struct {
	Timeout       time.Duration  `json:"timeout"`       // of one attempt
	RetryInterval time.Duration  `json:"retryInterval"` // between attempts
	Drain         drain.Settings `json:"drain"`
}

// DrainSettings reads the drain settings as they are in the file now. It is
// called before each attempt, so that a change takes effect without a restart.
func (a *Activities) DrainSettings(ctx context.Context, in DrainSettingsInput) (DrainSettings, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return DrainSettings{}, err
	}
	settings, err := c.Settings()
	if err != nil {
		return DrainSettings{}, err
	}
	return DrainSettings{
		Timeout: settings.Drain.Timeout.D(), RetryInterval: settings.Drain.RetryInterval.D(),
		Drain: drain.NewSettings(settings.Drain),
	}, nil
}

// DrainInput asks for one attempt to drain a node.
type DrainInput struct {
	NodeInput
	Settings drain.Settings `json:"settings"`
	Deadline time.Time      `json:"deadline"` // the attempt's end
}

// Drain makes one attempt to drain a node: it marks the node as being drained, evicts the
// pods and waits for their end, until the deadline. Its heartbeat holds the progress. An attempt
// that ends with pods left is a permanent error with the final progress in its
// details; a dead worker or an API server that is away is not the end of an
// attempt.
func (a *Activities) Drain(ctx context.Context, in DrainInput) (drain.Result, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return drain.Result{}, err
	}
	var latest atomic.Pointer[operation.DrainProgress]
	latest.Store(&operation.DrainProgress{Node: in.Node})
	defer keepAlive(ctx, func() any { return *latest.Load() })()
	deadline := localTime(a.Now(), activity.GetInfo(ctx).StartedTime, in.Deadline)
	a.markDraining(ctx, c, in.NodeInput, deadline)
	result, err := drain.Run(ctx, drain.Request{
		Cluster: c, Node: in.Node, Operation: in.Operation, Settings: in.Settings, Log: a.Log, Deadline: deadline,
		Report: func(p operation.DrainProgress) { latest.Store(&p) },
	})
	var failed *drain.Error
	switch {
	case errors.Is(err, drain.ErrUncordoned):
		return drain.Result{}, permanent(operation.TypeUncordoned, err)
	case errors.Is(err, drain.ErrForbidden), errors.Is(err, drain.ErrRecreated):
		return drain.Result{}, permanent(operation.TypeCannotDrain, err, *latest.Load())
	case errors.As(err, &failed):
		return drain.Result{}, permanent(operation.TypeDrain, err, *latest.Load())
	}
	return result, err
}
