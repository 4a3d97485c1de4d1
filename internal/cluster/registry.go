package cluster

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/zapr"
	"go.uber.org/zap"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/transport"
	"k8s.io/klog/v2"

	"ebb/internal/config"
	"ebb/internal/tunnel/dialer"
)

// Registry holds the clusters of one configuration file.
type Registry struct {
	file  *config.File
	log   *zap.Logger
	wraps []transport.WrapperFunc

	mu       sync.Mutex
	clusters map[string]entry
}

type entry struct {
	cluster *Cluster
	origin  origin
}

// origin identifies the kubeconfig that a client was made from, and the tunnel that it
// uses; when it changes, a new client is made.
type origin struct {
	kubeconfig, context string
	modified            time.Time
	size                int64
	tunnel              dialer.Options // zero = none
}

// NewRegistry returns the registry of the clusters in f. It also sends what the
// Kubernetes libraries log (klog is one per process) to log. wraps are transports
// that see every request to every cluster.
func NewRegistry(f *config.File, log *zap.Logger, wraps ...transport.WrapperFunc) *Registry {
	klog.SetLoggerWithOptions(zapr.NewLogger(log.Named("kubernetes")), klog.ContextualLogger(true))
	return &Registry{file: f, log: log, wraps: wraps, clusters: map[string]entry{}}
}

// Get returns the cluster of that name. Its client is made when first asked for, and
// again when the kubeconfig, its path or the context has changed; while the kubeconfig
// is missing or broken, as while it is being replaced, the last client stays in use.
// The error of a name that is not configured is a *ConfigError that lists those that
// are; that of a kubeconfig with which there was no client yet may be temporary.
func (r *Registry) Get(_ context.Context, name string) (*Cluster, error) {
	settings, err := r.settings(name)
	if err != nil {
		return nil, configError(err)
	}
	from, err := originOf(settings)
	r.mu.Lock()
	defer r.mu.Unlock()
	known, ok := r.clusters[name]
	if ok && err == nil && known.origin == from {
		return known.cluster, nil
	}
	var client kubernetes.Interface
	clock := &Clock{}
	if err == nil {
		client, err = NewClient(settings, append(slices.Clone(r.wraps), clock.wrap)...)
	}
	if err != nil && ok && known.origin.kubeconfig == settings.Kubeconfig && known.origin.context == settings.Context {
		r.log.Warn("the kubeconfig cannot be used now, the last credentials stay in use", zap.String("cluster", name), zap.Error(err))
		return known.cluster, nil
	}
	if err != nil {
		return nil, err
	}
	if ok {
		r.log.Info("kubeconfig changed, connecting again", zap.String("cluster", name))
		known.cluster.retire()
	}
	made := New(name, client, func() (config.Cluster, error) { return r.settings(name) }, r.log)
	made.Clock = clock
	r.clusters[name] = entry{cluster: made, origin: from}
	return made, nil
}

// Close ends the watches of all clusters.
func (r *Registry) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.clusters {
		e.cluster.Close()
	}
	clear(r.clusters)
}

func (r *Registry) settings(name string) (config.Cluster, error) {
	current, err := r.file.Current()
	if err != nil {
		return config.Cluster{}, err
	}
	return current.Cluster(name)
}

func originOf(settings config.Cluster) (origin, error) {
	info, err := os.Stat(settings.Kubeconfig)
	if err != nil {
		return origin{}, fmt.Errorf("kubeconfig of cluster %s: %w", settings.Name, err)
	}
	from := origin{kubeconfig: settings.Kubeconfig, context: settings.Context, modified: info.ModTime(), size: info.Size()}
	if settings.Tunnel.APIServer {
		from.tunnel = tunnelOptions(settings)
	}
	return from, nil
}
