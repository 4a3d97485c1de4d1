package endpoints

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/kubernetes"

	"ebb/internal/mirror"
	"ebb/internal/wait"
)

// renewInterval is how often it is asked whether the client for a cluster has changed.
const renewInterval = 5 * time.Second

// follower follows one cluster by a watcher. When the client for the cluster changes, it
// starts another watcher and replaces the first as soon as that one knows everything, so that
// nothing is taken from clients meanwhile. mu of the server guards it.
type follower struct {
	server  *Server
	cluster string
	log     *zap.Logger
	current *clusterWatcher
	next    *clusterWatcher // not there yet; nil = none
	lastErr string          // that was logged last
}

// follow starts to follow a cluster unless it is followed already. The caller holds mu.
func (s *Server) follow(cluster string) error {
	if s.clusters[cluster] != nil {
		return nil
	}
	client, err := s.opts.Client(s.watchCtx, cluster)
	if err != nil {
		return err
	}
	f := &follower{server: s, cluster: cluster, log: s.log.With(zap.String("cluster", cluster))}
	f.current = f.start(client, map[string]bool{})
	s.clusters[cluster] = f
	s.watchers.Go(func() {
		_ = wait.Poll(s.watchCtx, renewInterval, func() (bool, error) { // its error is that the server is closed
			f.renew(s.opts.Client(s.watchCtx, cluster))
			return false, nil
		})
	})
	return nil
}

// start starts a watcher that takes nodes for drained until it knows them. The caller holds mu.
func (f *follower) start(client kubernetes.Interface, draining map[string]bool) *clusterWatcher {
	w := newClusterWatcher(client, draining)
	ctx, stop := context.WithCancel(f.server.watchCtx)
	w.stop = stop
	f.server.watchers.Go(func() { w.run(ctx, f.log, func(services []string) { f.publish(w, services) }) })
	return w
}

// renew starts another watcher if the client is not that of the newest.
func (f *follower) renew(client kubernetes.Interface, err error) {
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	newest := f.current
	if f.next != nil {
		newest = f.next
	}
	f.sayOnce(err)
	if err != nil || client == newest.client {
		return
	}
	f.log.Info("the way to the cluster has changed: it is listed again, and clients keep what they have meanwhile")
	if f.next != nil {
		f.next.stop()
	}
	f.next = f.start(client, f.current.drainingNodes())
}

// sayOnce logs why there is no client, which is asked for every few seconds.
func (f *follower) sayOnce(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != f.lastErr {
		f.log.Warn("there is no client for the cluster now, it is followed by the last one", zap.Error(err))
	}
	f.lastErr = text
}

// publish updates the endpoints of services of a watcher (namespace/name; nil = all) that
// have subscribers. The next watcher takes the place of the current one by that.
func (f *follower) publish(w *clusterWatcher, services []string) {
	s := f.server
	s.mu.Lock()
	defer s.mu.Unlock()
	switch w {
	case f.current:
	case f.next:
		f.current.stop()
		f.current, f.next, services = f.next, nil, nil
	default: // another one has been faster
		return
	}
	s.updateEndpoints(func(one *subscription) bool {
		return one.name.Cluster == f.cluster && (services == nil || slices.Contains(services, one.name.Namespace+"/"+one.name.Service))
	})
}

// ClusterStatus is how a server stands with a cluster that it follows.
type ClusterStatus struct {
	Name    string
	Watches []mirror.Status // of each resource
}

// InStep reports whether everything is known and no watch fails.
func (c ClusterStatus) InStep() bool {
	return !slices.ContainsFunc(c.Watches, func(w mirror.Status) bool { return !w.Synced || w.Err != nil })
}

// LastEvent returns when something was heard of the cluster last; zero = never.
func (c ClusterStatus) LastEvent() (last time.Time) {
	for _, w := range c.Watches {
		if w.LastEvent.After(last) {
			last = w.LastEvent
		}
	}
	return last
}

// Clusters returns how the server stands with the clusters that it follows, by name.
func (s *Server) Clusters() []ClusterStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]ClusterStatus, 0, len(s.clusters))
	for _, name := range slices.Sorted(maps.Keys(s.clusters)) {
		all = append(all, ClusterStatus{Name: name, Watches: s.clusters[name].statuses()})
	}
	return all
}

// statuses returns how each watch of the cluster stands. Those that are open go on with a
// credential that was taken away; what the next ones are answered is told before they end.
// The caller holds mu.
func (f *follower) statuses() []mirror.Status {
	all := f.current.statuses()
	if f.next == nil {
		return all
	}
	for i, next := range f.next.statuses() {
		if all[i].Err == nil && next.Err != nil {
			all[i].Err = fmt.Errorf("by the kubeconfig as it is now: %w", next.Err)
		}
	}
	return all
}
