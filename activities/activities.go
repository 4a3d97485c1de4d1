// Package activities holds every side effect of an operation: what is read from
// and written to a managed cluster, its nodes and its machines. An activity does
// one thing, can be repeated, and says through its error whether trying again
// can help (errors.go).
package activities

import (
	"context"
	"time"

	"go.uber.org/zap"

	"ebb/internal/cluster"
	"ebb/internal/lease"
)

// Engine tells about the operations of the Temporal engine that runs this worker.
type Engine interface {
	// Identity names the engine, the same after a restart.
	Identity(ctx context.Context) (string, error)
	// Closed reports whether an operation is over or unknown to the engine.
	Closed(ctx context.Context, operation string) (bool, error)
	// Reconcile has a cluster in Alert looked at every minute, or no more. It may
	// be repeated.
	Reconcile(ctx context.Context, cluster string, on bool) error
	// Signal adds a signal to the history of a workflow that runs. An error means
	// that it may not be there.
	Signal(ctx context.Context, workflow, run, name string, value any) error
}

// Clusters finds the managed clusters by name. The error of a name that is not
// configured is a *cluster.ConfigError and says which are; another may be temporary.
type Clusters interface {
	Get(ctx context.Context, name string) (*cluster.Cluster, error)
}

// Activities are registered with the worker. In workflow code the struct is
// only named for its methods and stays a nil pointer.
type Activities struct {
	Clusters Clusters
	Engine   Engine
	Log      *zap.Logger
	Now      func() time.Time
}

func (a *Activities) store(c *cluster.Cluster) *lease.Store {
	return lease.NewStore(c.Client, a.Now)
}
