package activities

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/activity"

	"ebb/internal/cluster"
	"ebb/internal/drain"
	"ebb/internal/operation"
	"ebb/internal/policy"
)

// WaitDetachedInput names the node whose machine is to be destroyed.
type WaitDetachedInput struct {
	Cluster  string      `json:"cluster"`
	Node     policy.Node `json:"node"`
	Deadline time.Time   `json:"deadline"`
}

// WaitDetachedResult holds the volumes that are still attached, and that the settings let
// go with the machine.
type WaitDetachedResult struct {
	Attached []string `json:"attached,omitempty"`
}

// WaitDetached waits until no volume is attached to a node any more, apart from those of
// pods that stay on it. Past the deadline it is a permanent error that names those that
// are, unless scale.destroyAttached is set: then it does not wait.
func (a *Activities) WaitDetached(ctx context.Context, in WaitDetachedInput) (WaitDetachedResult, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return WaitDetachedResult{}, err
	}
	settings, err := c.Settings()
	if err != nil {
		return WaitDetachedResult{}, err
	}
	bounded, cancel := context.WithDeadline(ctx, localTime(a.Now(), activity.GetInfo(ctx).StartedTime, in.Deadline))
	defer cancel()
	if settings.Scale.DestroyAttached {
		bounded, cancel = context.WithCancel(ctx)
		cancel()
	}
	defer keepAlive(ctx, func() any { return nil })()

	w, err := c.Watch(ctx)
	if err != nil {
		return WaitDetachedResult{}, fmt.Errorf("watch cluster %s: %w", in.Cluster, err)
	}
	attached := waitDetached(bounded, w, in.Node.Name, drain.NewSettings(settings.Drain))
	switch {
	case ctx.Err() != nil:
		return WaitDetachedResult{}, ctx.Err()
	case len(attached) > 0 && !settings.Scale.DestroyAttached:
		return WaitDetachedResult{}, permanentf(operation.TypeVolumes,
			"the machine of %s is not destroyed, for volumes are still attached to it: %s (end what uses them, or set scale.destroyAttached: true)",
			in.Node.Name, strings.Join(attached, ", "))
	}
	return WaitDetachedResult{Attached: attached}, nil
}

// waitDetached returns the volumes that are attached to a node when there are none any
// more, or when ctx ends.
func waitDetached(ctx context.Context, w *cluster.Watch, node string, s drain.Settings) []string {
	changes := w.Subscribe(node)
	defer changes.Close()
	for {
		attached := drain.Attached(w, node, s)
		if len(attached) == 0 || ctx.Err() != nil {
			return attached
		}
		select {
		case <-ctx.Done():
		case <-changes.C:
		}
	}
}
