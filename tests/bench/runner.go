package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// toolTimeout bounds one tool's part of a row, so that a hung one ends the run.
const toolTimeout = 15 * time.Minute

// runner runs the rows, successive ones on the same cluster as long as that can be reset.
type runner struct {
	dir             string
	clustersCreated int // made so far
	cluster         *cluster
}

// result is one row of the result. Counts without a tool in their name are Ebb's.
type result struct {
	Row             string   `json:"row"`
	Work            string   `json:"work"`
	Kubectl         *float64 `json:"kubectl_s"` // null: kubectl has no such command
	Ebb             float64  `json:"ebb_s"`
	Bound           *float64 `json:"bound_s"` // null: the budgets set none
	Refused         int      `json:"refused"` // evictions
	Requests        int      `json:"requests"`
	KubectlRefused  *int     `json:"kubectl_refused"`
	KubectlRequests *int     `json:"kubectl_requests"`
	Drain           float64  `json:"drain_s"`                  // of Ebb's time, while at least one drain ran
	Orchestration   float64  `json:"orchestration_s_per_node"` // Ebb's time without drains, scripts and waits for Ready
}

// measure has both tools do a row, each on a cluster in the same state.
func (b *runner) measure(ctx context.Context, r row) (result, error) {
	o := result{Row: r.name, Work: r.work}
	if r.runKubectl != nil {
		l, err := b.prepare(ctx, r)
		if err != nil {
			return o, err
		}
		took, spent, err := l.measure(ctx, l.kubectlAccount, func(ctx context.Context) error { return r.runKubectl(ctx, l, r) })
		if err != nil {
			return o, err
		}
		logProgress("  kubectl %.2f s", took)
		o.Kubectl, o.KubectlRefused, o.KubectlRequests = &took, &spent.refusedEvictions, &spent.requests
		if err := b.finish(r); err != nil {
			return o, err
		}
	}
	l, err := b.prepare(ctx, r)
	if err != nil {
		return o, err
	}
	if o.Bound, err = l.bound(ctx, r); err != nil {
		return o, err
	}
	nodes := len(r.nodes)
	if nodes == 0 {
		nodes = l.spec.workers + 1 // an upgrade has all of them
	}
	var id string
	took, spent, err := l.measure(ctx, l.ebbAccount, func(ctx context.Context) (err error) {
		id, err = l.runOperation(ctx, r)
		return err
	})
	if err != nil {
		return o, err
	}
	times, err := readHistory(ctx, l.testbed.Client, id)
	if err != nil {
		return o, err
	}
	logProgress("  Ebb %.2f s: %s", took, &times)
	o.Ebb, o.Refused, o.Requests = took, spent.refusedEvictions, spent.requests
	o.Drain, o.Orchestration = times.busy("Drain").Seconds(), times.orchestration().Seconds()/float64(nodes)
	return o, b.finish(r)
}

// prepare returns a cluster as the row wants it, with everything in its place.
func (b *runner) prepare(ctx context.Context, r row) (*cluster, error) {
	if b.cluster != nil && b.cluster.spec.name != r.cluster.name {
		if err := b.deleteCluster(); err != nil {
			return nil, err
		}
	}
	if b.cluster == nil {
		b.clustersCreated++
		dir := filepath.Join(b.dir, fmt.Sprintf("%d-%s", b.clustersCreated, r.cluster.name))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		l, err := newCluster(ctx, dir, r.cluster)
		if err != nil {
			return nil, err
		}
		b.cluster = l
	}
	return b.cluster, errors.Join(b.cluster.reset(ctx), b.cluster.configureWorker(r.parallel))
}

func (b *runner) finish(r row) error {
	if r.destructive {
		return b.deleteCluster()
	}
	return nil
}

// deleteCluster ends the cluster, if there is one.
func (b *runner) deleteCluster() error {
	if b.cluster == nil {
		return nil
	}
	err := b.cluster.testbed.Stop()
	b.cluster = nil
	return err
}

// measure times one tool, in seconds, and counts what it asks of the API server.
func (l *cluster) measure(ctx context.Context, a account, work func(context.Context) error) (took float64, spent requestCounts, err error) {
	ctx, cancel := context.WithTimeout(ctx, toolTimeout)
	defer cancel()
	before, err := a.readCounts(ctx, l.api())
	if err != nil {
		return 0, requestCounts{}, err
	}
	began := time.Now()
	if err := work(ctx); err != nil {
		return 0, requestCounts{}, err
	}
	took = time.Since(began).Seconds()
	after, err := a.readCounts(ctx, l.api())
	return took, after.since(before), err
}
