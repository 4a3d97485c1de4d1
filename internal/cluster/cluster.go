// Package cluster is Ebb's access to the managed Kubernetes clusters: one
// client and one set of shared watches per cluster, made when first needed.
package cluster

import (
	"context"
	"fmt"
	"sync"

	"go.uber.org/zap"
	"k8s.io/client-go/kubernetes"

	"ebb/internal/config"
	"ebb/internal/infra"
)

// Cluster is one managed cluster and the client that talks to it.
type Cluster struct {
	Name   string
	Client kubernetes.Interface
	Clock  *Clock // of the API server; nil = it agrees with this machine's

	settings func() (config.Cluster, error)
	log      *zap.Logger

	mu      sync.Mutex
	watch   *Watch
	retired bool
}

// New returns the cluster that client talks to. settings is called each time the
// cluster's section of ebb.yaml is needed.
func New(name string, client kubernetes.Interface, settings func() (config.Cluster, error), log *zap.Logger) *Cluster {
	return &Cluster{Name: name, Client: client, settings: settings, log: log.With(zap.String("cluster", name))}
}

// Settings returns the cluster's section of ebb.yaml as the file is now, so
// that a change applies without a restart. The error is a *ConfigError.
func (c *Cluster) Settings() (config.Cluster, error) {
	settings, err := c.settings()
	return settings, configError(err)
}

// Infra returns the provider that owns the cluster's machines, as configured now. The
// error is a *ConfigError.
func (c *Cluster) Infra() (infra.Provider, error) {
	settings, err := c.Settings()
	if err != nil {
		return nil, err
	}
	provider, err := infra.New(settings.Infrastructure)
	if err != nil {
		return nil, configError(fmt.Errorf("infrastructure of cluster %s: %w", c.Name, err))
	}
	return provider, nil
}

// Watch returns the cluster's shared watch, which the first call starts, once every
// resource has been listed. When ctx ends before that, the error says which resource
// is missing and what the API server answered.
func (c *Cluster) Watch(ctx context.Context) (*Watch, error) {
	c.mu.Lock()
	if c.watch == nil || c.watch.stopped() {
		c.watch = startWatch(c.Client, c.log, c.retired)
		c.watch.Clock = c.Clock
	}
	w := c.watch
	c.mu.Unlock()
	if err := w.waitSynced(ctx); err != nil {
		return nil, fmt.Errorf("watch cluster %s: %w", c.Name, err)
	}
	return w, nil
}

// retire ends the watches once they have no subscriber any more.
func (c *Cluster) retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.retired = true
	if c.watch != nil {
		c.watch.retire()
	}
}

// Close ends the watches at once; subscribers are not notified any more.
func (c *Cluster) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watch != nil {
		c.watch.stop()
	}
}
