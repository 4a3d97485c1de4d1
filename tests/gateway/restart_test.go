// Package gateway proves the gateway with real processes: the engine, a worker,
// gateways that are stopped, killed and succeeded, nginx and an init.
package gateway

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/api/client"
	"ebb/internal/api/wire"
	"ebb/internal/operation"
	"ebb/internal/ops"
)

// 200 submits at once, a SIGTERM in the middle of them, and a successor five
// seconds later: every operation runs, exactly once.
func TestSubmitsSurviveARestart(t *testing.T) {
	const submits = 200
	s := newEnvironment(t)
	s.startWorker()
	g := s.newGateway("gateway", "")
	g.start()

	var (
		group    sync.WaitGroup
		answered = make(chan error, submits)
		third    = make(chan struct{})
		count    sync.Mutex
		done     int
	)
	started := make([]bool, submits)
	for i := range submits {
		group.Go(func() {
			c, err := client.New(client.Options{URL: g.url(), Token: s.tokens["otto"]})
			if err != nil {
				answered <- err
				return
			}
			// From a third on they come a little later, so that some meet the
			// signal, some the gap, and some the successor.
			if i > submits/3 {
				<-third
			}
			_, started[i], err = c.Start(t.Context(), ops.Request{ID: fmt.Sprintf("drain-%d", i), Kind: operation.KindDrain, Cluster: "prod", Nodes: []string{"w1"}})
			answered <- err
			count.Lock()
			defer count.Unlock()
			if done++; done == submits/3 {
				close(third)
			}
		})
	}
	<-third
	first := g.process
	g.signal(syscall.SIGTERM)
	require.Zero(t, first.ExitCode(), "an orderly end")
	gap := time.NewTimer(5 * time.Second)
	<-gap.C
	g.start()
	group.Wait()
	close(answered)
	for err := range answered {
		require.NoError(t, err)
	}
	for i := range submits {
		require.True(t, started[i], "drain-%d: it was this caller who started it", i)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	s.eventually("all are listed", func() bool { return s.operationCount() >= submits })
	require.Equal(t, submits, s.operationCount())
	for i := range submits {
		id := fmt.Sprintf("drain-%d", i)
		require.EqualValues(t, 1, s.executionCount(id), id)
		require.EqualValues(t, 1, s.claimCount(ctx, id), "%s: it ran, once", id)
	}
}

// Killed after the engine has accepted and before the caller was answered: the
// caller asks again and is given the operation that there is.
func TestKilledBeforeTheAnswer(t *testing.T) {
	s := newEnvironment(t)
	between := newPausableProxy(t, s.engine)
	g := s.newGateway("gateway", "")
	g.engine = between.address()
	g.start()
	id := newID("drain")

	between.pause()
	cut := make(chan error, 1)
	go func() {
		_, err := send(t.Context(), http.DefaultClient, http.MethodPost, g.url()+"/v1/operations", drainRequest("prod", "w1"), s.header("otto", wire.HeaderIdempotencyKey, id))
		cut <- err
	}()
	s.eventually("the engine has accepted", func() bool { return s.executionCount(id) == 1 })
	select {
	case err := <-cut:
		t.Fatalf("it was answered: %v", err)
	default:
	}
	require.NoError(t, g.process.Kill())
	require.Error(t, <-cut)
	between.resume()
	g.start()

	a := g.do("otto", http.MethodPost, "/v1/operations", drainRequest("prod", "w1"), wire.HeaderIdempotencyKey, id)
	require.Equal(t, http.StatusOK, a.status, "%s", a.body)
	require.Contains(t, string(a.body), `"id":"`+id+`"`)
	require.EqualValues(t, 1, s.executionCount(id))
	require.Equal(t, 1, s.operationCount())
}

// The same with the client: for it, it was started, and it says nothing else.
func TestClientOfAKilledGateway(t *testing.T) {
	s := newEnvironment(t)
	between := newPausableProxy(t, s.engine)
	g := s.newGateway("gateway", "")
	g.engine = between.address()
	g.start()
	id := newID("drain")
	c, err := client.New(client.Options{URL: g.url(), Token: s.tokens["otto"]})
	require.NoError(t, err)

	between.pause()
	type result struct {
		op      ops.Operation
		started bool
		err     error
	}
	answered := make(chan result, 1)
	go func() {
		op, started, err := c.Start(t.Context(), ops.Request{ID: id, Kind: operation.KindDrain, Cluster: "prod", Nodes: []string{"w1"}})
		answered <- result{op, started, err}
	}()
	s.eventually("the engine has accepted", func() bool { return s.executionCount(id) == 1 })
	require.NoError(t, g.process.Kill())
	between.resume()
	g.start()
	r := <-answered
	require.NoError(t, r.err)
	require.True(t, r.started)
	require.Equal(t, id, r.op.ID)
	require.EqualValues(t, 1, s.executionCount(id))
}
