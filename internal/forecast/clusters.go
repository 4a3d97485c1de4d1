package forecast

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"ebb/internal/cluster"
	"ebb/internal/clusterstate"
	"ebb/internal/config"
	"ebb/internal/lease"
	"ebb/internal/operation"
	"ebb/internal/policy"
	"ebb/internal/tunnel/dialer"
	"ebb/internal/version"
)

// Clusters is how commands look at clusters. Local looks itself; the client of a
// gateway asks it.
type Clusters interface {
	// List is every cluster that is configured, in the order of the configuration.
	// One that does not answer is there with its error.
	List(ctx context.Context) ([]Overview, error)
	// Look is one cluster. An unknown one is an *UnknownClusterError.
	Look(ctx context.Context, name string) (Overview, error)
	// Plan tells what an operation would do to a cluster now, and changes nothing.
	// An unknown cluster is an *UnknownClusterError.
	Plan(ctx context.Context, q Question) (Forecast, error)
}

// Question asks what an operation would do.
type Question struct {
	Kind    operation.Kind // KindUpgrade or KindScaleDown
	Cluster string
	Route   version.Route // of an upgrade
	Nodes   []string      // of a scale-down
	Count   int           // of a scale-down, when Nodes is empty
}

// Overview is a cluster as it is now.
type Overview struct {
	Cluster string `json:"cluster"`
	clusterstate.Record
	Nodes       []policy.Node  `json:"nodes,omitempty"`
	Agents      []dialer.Agent `json:"agents,omitempty"`      // of its tunnel, at the gateway that has answered; only when one cluster is asked for
	AgentsError string         `json:"agentsError,omitempty"` // why they are not known
	Error       string         `json:"error,omitempty"`       // why it could not be looked at
}

// UnknownClusterError is a cluster that is not configured.
type UnknownClusterError struct {
	Name  string
	Known []string // the clusters that are; nil = that is not told
}

func (e *UnknownClusterError) Error() string {
	if len(e.Known) == 0 {
		return fmt.Sprintf("there is no cluster %q", e.Name)
	}
	return fmt.Sprintf("there is no cluster %q, only %s", e.Name, strings.Join(e.Known, ", "))
}

const (
	lookTimeout = 10 * time.Second // how long one cluster may take to answer
	lookAtOnce  = 10               // clusters looked at side by side
	planTimeout = time.Minute      // how long a forecast may take
)

var _ Clusters = (*Local)(nil)

// Local looks at the clusters of a registry.
type Local struct {
	registry *cluster.Registry
	names    func() ([]string, error)
}

// NewLocal looks at the clusters of r, which stays the caller's to close; names
// are those that are configured now.
func NewLocal(r *cluster.Registry, names func() ([]string, error)) *Local {
	return &Local{registry: r, names: names}
}

// List implements Clusters.
func (l *Local) List(ctx context.Context) ([]Overview, error) {
	return l.Among(ctx, func(string) bool { return true })
}

// Among is List of those clusters that which returns true for; the others are not
// asked for anything.
func (l *Local) Among(ctx context.Context, which func(name string) bool) ([]Overview, error) {
	all, err := l.names()
	if err != nil {
		return nil, err
	}
	names := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !which(name) })
	found := make([]Overview, len(names))
	var group errgroup.Group
	group.SetLimit(lookAtOnce)
	for i, name := range names {
		group.Go(func() error {
			var err error
			if found[i], err = l.look(ctx, name); err != nil {
				found[i].Error = err.Error()
			}
			return nil
		})
	}
	return found, errors.Join(group.Wait(), ctx.Err())
}

// Look implements Clusters.
func (l *Local) Look(ctx context.Context, name string) (Overview, error) {
	if err := l.known(name); err != nil {
		return Overview{}, err
	}
	o, err := l.look(ctx, name)
	if err == nil {
		l.addAgents(ctx, &o)
	}
	return o, err
}

// addAgents asks the gateway of the cluster's tunnel, if it is configured here, for the agents.
func (l *Local) addAgents(ctx context.Context, o *Overview) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	c, err := l.registry.Get(ctx, o.Cluster)
	if err == nil {
		var settings config.Cluster
		if settings, err = c.Settings(); err == nil && settings.Tunnel.Address == "" {
			return
		}
		o.Agents, err = cluster.Tunnel(settings).Agents(ctx)
	}
	if err != nil {
		o.AgentsError = err.Error()
	}
}

func (l *Local) known(name string) error {
	names, err := l.names()
	if err == nil && !slices.Contains(names, name) {
		return &UnknownClusterError{Name: name, Known: names}
	}
	return err
}

func (l *Local) look(ctx context.Context, name string) (Overview, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	o := Overview{Cluster: name}
	c, err := l.registry.Get(ctx, name)
	if err != nil {
		return o, err
	}
	if o.Record, err = lease.NewStore(c.Client, time.Now).Get(ctx); err != nil {
		return o, fmt.Errorf("cluster %s: %w", name, err)
	}
	o.Nodes, err = c.Nodes(ctx)
	return o, err
}

// Plan implements Clusters.
func (l *Local) Plan(ctx context.Context, q Question) (Forecast, error) {
	if err := l.known(q.Cluster); err != nil {
		return Forecast{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, planTimeout)
	defer cancel()
	c, err := l.registry.Get(ctx, q.Cluster)
	if err != nil {
		return Forecast{}, err
	}
	switch q.Kind {
	case operation.KindUpgrade:
		return ofUpgrade(ctx, c, q.Route)
	case operation.KindScaleDown:
		return ofScaleDown(ctx, c, q.Nodes, q.Count)
	default:
		return Forecast{}, fmt.Errorf("there is no forecast of a %s", q.Kind)
	}
}
