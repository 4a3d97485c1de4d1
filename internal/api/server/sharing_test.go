package server

import (
	"encoding/json"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"ebb/internal/api/wire"
	"ebb/internal/ops"
)

// All who follow an operation share one look at the engine, also one that comes later;
// who comes after its end looks anew.
func TestFollowersShareOneLook(t *testing.T) {
	const followers = 5
	b := newBed(t)
	b.ops.Add("op-1", "prod", "Running")
	answered := make(chan answer, followers)
	for range followers {
		go func() {
			a, _ := b.try("vera", "GET", "/v1/operations/op-1/wait?timeout=5m", "")
			answered <- a
		}()
	}
	eventually(t, "all wait", func() bool { return b.server.lifecycle.status().Streams == followers })
	stream := b.follow("/v1/operations/op-1/events?follow=true&types=status")
	line, err := stream.ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, `"state":"Running"`)
	b.ops.Finish()
	for range followers {
		var w wire.WaitAnswer
		require.NoError(t, json.Unmarshal((<-answered).body, &w))
		require.Equal(t, "end", w.Type)
		require.Equal(t, ops.Done, w.Operation.State)
	}
	rest, err := io.ReadAll(stream)
	require.NoError(t, err)
	require.Contains(t, string(rest), `"state":"Done"`)
	require.Contains(t, string(rest), `"type":"end"`)
	require.Equal(t, 1, b.ops.Watched)
	_, err = io.ReadAll(b.follow("/v1/operations/op-1/events?follow=true&types=status"))
	require.NoError(t, err)
	require.Equal(t, 2, b.ops.Watched)
	require.Empty(t, b.server.watches.open)
}

// A cluster that the caller may not see is not asked for anything.
func TestOnlyVisibleClustersAreLookedAt(t *testing.T) {
	b := newBed(t)
	var list wire.ClusterList
	b.ok("devop", "GET", "/v1/clusters", &list)
	require.Len(t, list.Clusters, 1)
	require.Equal(t, []string{"dev"}, b.clusters.Looked)
}

// So many plans are made at once, for one principal and for all; the others are told to
// ask again.
func TestPlansAreBounded(t *testing.T) {
	b := newBed(t)
	b.clusters.Hold = make(chan struct{})
	const path = "/v1/clusters/prod/plan?kind=upgrade&to=1.37.2"
	statuses := make(chan int, planLimits.all)
	plan := func(who string) {
		a, _ := b.try(who, "GET", path, "")
		statuses <- a.status
	}
	for range planLimits.ofPrincipal {
		go plan("vera")
		go plan("otto")
	}
	eventually(t, "all are made", func() bool { return b.server.plans.taken() == planLimits.all })
	for _, who := range []string{"vera", "ada"} {
		a := b.do(who, "GET", path, "")
		require.Equal(t, wire.CodeRate, a.problem(t).Code)
		require.Equal(t, "1", a.header.Get("Retry-After"))
	}
	close(b.clusters.Hold)
	for range planLimits.all {
		require.Equal(t, http.StatusOK, <-statuses)
	}
	b.ok("vera", "GET", path, nil)
}
