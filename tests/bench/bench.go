package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// rowTimeout bounds one tool's part of a row, so that a hung one ends the run.
const rowTimeout = 15 * time.Minute

// bench keeps the cluster from row to row as long as it can be put back.
type bench struct {
	dir  string
	labs int // made so far
	lab  *lab
}

// outcome is one row of the result. Counts without a tool in their name are Ebb's.
type outcome struct {
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
func (b *bench) measure(ctx context.Context, r row) (outcome, error) {
	o := outcome{Row: r.name, Work: r.work}
	if r.peer != nil {
		l, err := b.prepare(ctx, r)
		if err != nil {
			return o, err
		}
		took, spent, err := l.measure(ctx, l.peer, func(ctx context.Context) error { return r.peer(ctx, l, r) })
		if err != nil {
			return o, err
		}
		say("  kubectl %.2f s", took)
		o.Kubectl, o.KubectlRefused, o.KubectlRequests = &took, &spent.refused, &spent.requests
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
		nodes = l.shape.workers + 1 // an upgrade has all of them
	}
	var id string
	took, spent, err := l.measure(ctx, l.ebb, func(ctx context.Context) (err error) {
		id, err = l.operate(ctx, r)
		return err
	})
	if err != nil {
		return o, err
	}
	times, err := readHistory(ctx, l.bed.Client, id)
	if err != nil {
		return o, err
	}
	say("  Ebb %.2f s: %s", took, &times)
	o.Ebb, o.Refused, o.Requests = took, spent.refused, spent.requests
	o.Drain, o.Orchestration = times.spent("Drain").Seconds(), times.orchestration().Seconds()/float64(nodes)
	return o, b.finish(r)
}

// prepare is a cluster as the row wants it, with everything in its place.
func (b *bench) prepare(ctx context.Context, r row) (*lab, error) {
	if b.lab != nil && b.lab.shape.name != r.on.name {
		if err := b.drop(); err != nil {
			return nil, err
		}
	}
	if b.lab == nil {
		b.labs++
		dir := filepath.Join(b.dir, fmt.Sprintf("%d-%s", b.labs, r.on.name))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		l, err := newLab(ctx, dir, r.on)
		if err != nil {
			return nil, err
		}
		b.lab = l
	}
	return b.lab, errors.Join(b.lab.level(ctx), b.lab.configure(r.parallel))
}

func (b *bench) finish(r row) error {
	if r.ends {
		return b.drop()
	}
	return nil
}

// drop ends the cluster, if there is one.
func (b *bench) drop() error {
	if b.lab == nil {
		return nil
	}
	err := b.lab.bed.Stop()
	b.lab = nil
	return err
}

// measure times one tool, in seconds, and counts what it asks of the API server.
func (l *lab) measure(ctx context.Context, a account, work func(context.Context) error) (took float64, spent count, err error) {
	ctx, cancel := context.WithTimeout(ctx, rowTimeout)
	defer cancel()
	before, err := a.read(ctx, l.api())
	if err != nil {
		return 0, count{}, err
	}
	began := time.Now()
	if err := work(ctx); err != nil {
		return 0, count{}, err
	}
	took = time.Since(began).Seconds()
	after, err := a.read(ctx, l.api())
	return took, after.since(before), err
}
