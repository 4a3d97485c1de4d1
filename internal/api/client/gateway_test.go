package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"ebb/internal/api/apitest"
	"ebb/internal/api/auth"
	"ebb/internal/api/server"
	"ebb/internal/api/wire"
	"ebb/internal/forecast"
	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/internal/version"
)

// gateway is a real server with no engine and no clusters behind it.
type gateway struct {
	url      string
	ops      *apitest.Operations
	clusters *apitest.Clusters
}

// tokens are valid; each stands for the principal of that name.
type tokens map[string]auth.Grant

// Authenticate implements auth.Authenticator.
func (t tokens) Authenticate(_ context.Context, token string) (*auth.Principal, error) {
	grant, ok := t[token]
	if !ok {
		return nil, &auth.TokenError{Reason: "the token is not known here"}
	}
	return &auth.Principal{Name: token, Source: auth.SourceToken, Grants: []auth.Grant{grant}}, nil
}

func newGateway(t *testing.T) *gateway {
	t.Helper()
	g := &gateway{ops: apitest.NewOperations(), clusters: &apitest.Clusters{}}
	gateway := server.New(server.Options{Operations: g.ops, Clusters: g.clusters, Log: zap.NewNop(), Version: "test", Auth: tokens{
		"vera": {Role: auth.Viewer, Clusters: []string{"*"}}, "otto": {Role: auth.Operator, Clusters: []string{"*"}}, "devop": {Role: auth.Operator, Clusters: []string{"dev"}},
	}})
	listener := httptest.NewServer(gateway)
	t.Cleanup(func() { listener.Close(); gateway.Close() })
	g.url = listener.URL
	return g
}

// streams is how many streams and waits the server has open.
func (g *gateway) streams(t *testing.T) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, g.url+"/v1/lifecycle", nil)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer vera")
	response, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	var now wire.Lifecycle
	require.NoError(t, json.NewDecoder(response.Body).Decode(&now))
	return now.Streams
}

func TestClientAgainstTheServer(t *testing.T) {
	g := newGateway(t)
	c := newCaller(t, g.url, "otto")
	ctx := t.Context()
	r := ops.Request{ID: "op-1", Kind: operation.KindDrain, Cluster: "prod", Nodes: []string{"w1"}}

	op, started, err := c.Start(ctx, r)
	require.NoError(t, err)
	require.True(t, started)
	require.Equal(t, r, op.Request)
	_, started, err = c.Start(ctx, r)
	require.NoError(t, err)
	require.False(t, started)
	other := r
	other.Nodes = []string{"w2"}
	_, _, err = c.Start(ctx, other)
	var conflict *ops.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, &ops.ConflictError{ID: "op-1", Exists: r, Asked: other}, conflict)

	op, err = c.Get(ctx, "op-1")
	require.NoError(t, err)
	require.Equal(t, ops.Running, op.State)
	list, err := c.List(ctx, ops.Filter{Cluster: "prod", Kind: operation.KindDrain, Open: true, Limit: 7})
	require.NoError(t, err)
	require.Len(t, list, 1)

	said, err := c.Steer(ctx, "op-1", ops.Steering{Action: ops.SkipNode, Node: "w1", Key: "mine"})
	require.NoError(t, err)
	require.Equal(t, "as you say", said)
	_, err = c.Steer(ctx, "op-1", ops.Steering{Action: ops.RetryNow})
	require.NoError(t, err)
	require.Equal(t, ops.Steering{Action: ops.SkipNode, Node: "w1", Key: "mine"}, g.ops.Steered[0])
	require.NotEmpty(t, g.ops.Steered[1].Key, "so that a repetition is known for one")
	require.NoError(t, c.Cancel(ctx, "op-1"))

	var unknown *ops.UnknownError
	_, err = c.Get(ctx, "nobody")
	require.ErrorAs(t, err, &unknown)
	require.ErrorContains(t, err, `there is no operation "nobody" here`)
	require.ErrorAs(t, c.Watch(ctx, "nobody", func(ops.Operation) {}), &unknown)
	var bad *ops.RequestError
	require.ErrorAs(t, c.Events(ctx, "op-1", ops.EventFilter{After: "x"}, func(ops.Event) error { return nil }), &bad)

	require.ErrorAs(t, c.Events(ctx, "op-1", ops.EventFilter{Tail: -1}, func(ops.Event) error { return nil }), &bad, "as without a gateway")

	overviews, err := c.Clusters().List(ctx)
	require.NoError(t, err)
	require.Equal(t, []forecast.Overview{apitest.Overview, {Cluster: "dev", Error: "refused"}}, overviews)
	look, err := c.Clusters().Look(ctx, "prod")
	require.NoError(t, err)
	require.Equal(t, apitest.Overview, look)
	var nowhere *forecast.UnknownClusterError
	_, err = c.Clusters().Look(ctx, "nowhere")
	require.ErrorAs(t, err, &nowhere)
	_, err = newCaller(t, g.url, "devop").Clusters().Look(ctx, "prod")
	require.ErrorAs(t, err, &nowhere, "it is none of theirs")
	q := forecast.Question{Kind: operation.KindUpgrade, Cluster: "prod", Route: version.Route{Hops: []version.Version{"1.37.9"}, Target: "1.38.0"}}
	_, err = c.Clusters().Plan(ctx, q)
	require.NoError(t, err)
	require.Equal(t, q, g.clusters.Asked)

	g.ops.Finish()
	_, err = c.Steer(ctx, "op-1", ops.Steering{Action: ops.Pause})
	var notNow *ops.NotNowError
	require.ErrorAs(t, err, &notNow)
	require.EqualError(t, err, "op-1: it is over")
	require.Empty(t, c.notices)

	_, err = newCaller(t, g.url, "wrong").Get(ctx, "op-1")
	require.ErrorContains(t, err, "--token-file")
	require.NotContains(t, err.Error(), "wrong")
}

func TestClientFollows(t *testing.T) {
	g := newGateway(t)
	c := newCaller(t, g.url, "vera")
	g.ops.Add("op-1", "prod", ops.Running)
	g.ops.Say("one", "two")
	var texts []string
	require.NoError(t, c.Events(t.Context(), "op-1", ops.EventFilter{}, func(e ops.Event) error { texts = append(texts, e.Text); return nil }))
	require.Equal(t, []string{"one", "two"}, texts, "those that there are")

	texts = nil
	done := make(chan error, 2)
	go func() {
		done <- c.Events(t.Context(), "op-1", ops.EventFilter{After: "1", Follow: true}, func(e ops.Event) error { texts = append(texts, e.Text); return nil })
	}()
	var states []ops.State
	go func() {
		done <- c.Watch(t.Context(), "op-1", func(op ops.Operation) { states = append(states, op.State) })
	}()
	require.Eventually(t, func() bool { return g.streams(t) == 2 }, 20*time.Second, 5*time.Millisecond, "both are read")
	g.ops.Say("three")
	g.ops.Finish()
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	require.Equal(t, []string{"two", "three"}, texts)
	require.Equal(t, []ops.State{ops.Running, ops.Done}, states, "what has not changed is not told")

	full := fmt.Errorf("no room")
	require.ErrorIs(t, c.Events(t.Context(), "op-1", ops.EventFilter{}, func(ops.Event) error { return full }), full)
}
