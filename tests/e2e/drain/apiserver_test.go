package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/config"
	"ebb/internal/drain"
	"ebb/internal/operation"
)

// One attempt outlasts two restarts: the API server is away for a few seconds
// each time, with evictions and watches under way. It takes long because the
// controllers and the kubelets, unlike Ebb, back off for up to a minute.
func TestDrainOutlastsRestartsOfTheAPIServer(t *testing.T) {
	b := newIsolatedFixture(t)
	log := b.record()
	b.create("web", 5)
	b.create("slow", 4, slowToStop(8*time.Second))
	web, slow := b.waitReady("web", 5), b.waitReady("slow", 4)
	b.budget("web", "web", unavailable(1))
	a := b.start(5 * time.Minute)
	for _, n := range []int{5, 7} {
		a.evicted(t, n)
		unanswered := log.unanswered()
		require.NoError(t, b.box.RestartAPIServer(t.Context(), 3*time.Second))
		require.Greater(t, log.unanswered(), unanswered, "requests were made meanwhile")
	}
	result, err := a.wait()
	require.NoError(t, err)
	require.Equal(t, 9, result.Gone)
	log.requireOnce(t, append(web, slow...))
	t.Logf("took %s, %d evictions sent for 9 pods", result.Took, len(log.evictions()))
}

// A watch that is closed and cannot be taken up again is made anew.
func TestDrainOutlastsExpiredWatches(t *testing.T) {
	b := newFixture(t)
	log := b.record()
	web := b.deploy("web", 4)
	b.budget("web", "web", unavailable(1))
	a := b.start(time.Minute)
	for _, n := range []int{1, 3} {
		a.evicted(t, n)
		log.expire()
	}
	result, err := a.wait()
	require.NoError(t, err)
	require.Equal(t, 4, result.Evicted)
	log.requireOnce(t, web)
	log.mu.Lock()
	defer log.mu.Unlock()
	require.Positive(t, log.gone, "watches were refused")
	t.Logf("took %s, %d watches answered with 410", result.Took, log.gone)
}

func TestDrainGoesOnWhereAnotherStopped(t *testing.T) {
	b := newFixture(t)
	log := b.record()
	web := b.deploy("web", 3)
	b.budget("web", "web", unavailable(1))
	b.ready()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := drain.Run(ctx, drain.Request{Cluster: b.cluster, Node: b.node, Settings: drain.NewSettings(config.Drain{}),
		Deadline: time.Now().Add(time.Minute), Report: func(p operation.DrainProgress) {
			if p.Evicted == 1 {
				cancel()
			}
		}})
	require.ErrorIs(t, err, context.Canceled)
	result, err := b.start(time.Minute).wait()
	require.NoError(t, err)
	require.Equal(t, 2, result.Evicted, "the first pod is not evicted again")
	log.requireOnce(t, web)
}
