package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// pool holds the environments that are not in use.
type pool struct {
	dir  string
	free chan *environment
	made int
}

func newPool(t *testing.T) *pool {
	t.Helper()
	dir, err := os.MkdirTemp("", "faults")
	require.NoError(t, err)
	p := &pool{dir: dir, free: make(chan *environment, environmentCount())}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var starting sync.WaitGroup
	errs := make(chan error, environmentCount())
	for range environmentCount() {
		at := p.nextDir()
		starting.Go(func() {
			env, err := startEnvironment(ctx, at)
			if err == nil {
				p.put(env)
			}
			errs <- err
		})
	}
	starting.Wait()
	t.Cleanup(func() { p.close(t) })
	for range environmentCount() {
		require.NoError(t, <-errs)
	}
	return p
}

func (p *pool) nextDir() string {
	p.made++
	return filepath.Join(p.dir, fmt.Sprint(p.made))
}

func (p *pool) take() *environment   { return <-p.free }
func (p *pool) put(env *environment) { p.free <- env }

// runAll makes all runs, each in an environment that is free. One in which a run did
// not come to its end is replaced.
func (p *pool) runAll(ctx context.Context, runs []run, do func(*environment, run) error) {
	var going sync.WaitGroup
	for _, r := range runs {
		env := p.take()
		going.Go(func() {
			if err := do(env, r); err != nil {
				env = p.replace(ctx, env)
			}
			p.put(env)
		})
	}
	going.Wait()
}

// replace returns a new environment for one that is broken.
func (p *pool) replace(ctx context.Context, env *environment) *environment {
	if err := env.stop(); err != nil {
		fmt.Println("stop an environment:", err)
	}
	fresh, err := startEnvironment(ctx, env.dir+"+")
	if err != nil {
		panic(fmt.Sprintf("no new environment: %v", err))
	}
	return fresh
}

func (p *pool) close(t *testing.T) {
	for range len(p.free) {
		require.NoError(t, p.take().stop())
	}
	if t.Failed() {
		fmt.Println("kept for a look:", p.dir)
		return
	}
	require.NoError(t, os.RemoveAll(p.dir))
}
