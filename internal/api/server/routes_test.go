package server

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"ebb/internal/api/wire"
	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/internal/version"
)

// What each caller is answered, route by route: vera views all, prodop operates
// prod, devop operates dev, prodadmin administers prod, ada administers all.
func TestRolesAndScopes(t *testing.T) {
	b := newBed(t)
	b.ops.Add("op-1", "prod", "Running")
	b.ops.Add("over", "prod", "Done")
	cancelling := func() bool {
		op, err := b.ops.Get(t.Context(), "op-1")
		require.NoError(t, err)
		return op.Cancelling
	}
	who := []string{"vera", "prodop", "devop", "prodadmin", "ada"}
	for _, c := range []struct {
		method, path, body string
		want               []int
	}{
		{"GET", "/metrics", "", []int{200, 403, 403, 403, 200}},
		{"GET", "/v1/lifecycle", "", []int{200, 200, 200, 200, 200}},
		{"POST", "/v1/lifecycle/uncordon", "", []int{403, 403, 403, 403, 200}},
		{"GET", "/v1/operations", "", []int{200, 200, 200, 200, 200}},
		{"GET", "/v1/operations?cluster=prod", "", []int{200, 200, 403, 200, 200}},
		{"GET", "/v1/operations/op-1", "", []int{200, 200, 404, 200, 200}},
		{"GET", "/v1/operations/over/wait", "", []int{200, 200, 404, 200, 200}},
		{"GET", "/v1/operations/op-1/events", "", []int{200, 200, 404, 200, 200}},
		{"POST", "/v1/operations", drainW1, []int{403, 202, 403, 202, 202}},
		{"POST", "/v1/operations/op-1/pause", "", []int{403, 200, 404, 200, 200}},
		{"POST", "/v1/operations/op-1/resume", "", []int{403, 200, 404, 200, 200}},
		{"POST", "/v1/operations/op-1/retry", `{"node":"w1"}`, []int{403, 200, 404, 200, 200}},
		{"POST", "/v1/operations/op-1/skip-node", `{"node":"w1"}`, []int{403, 200, 404, 200, 200}},
		{"POST", "/v1/operations/op-1/give-up", "", []int{403, 200, 404, 200, 200}},
		{"POST", "/v1/operations/op-1/cancel", "", []int{403, 200, 404, 200, 200}},
		{"GET", "/v1/clusters", "", []int{200, 200, 200, 200, 200}},
		{"GET", "/v1/clusters/prod", "", []int{200, 200, 403, 200, 200}},
		{"GET", "/v1/clusters/prod/plan?kind=upgrade&to=1.37.2", "", []int{200, 200, 403, 200, 200}},
	} {
		for i, name := range who {
			before := []any{len(b.ops.Steered), b.ops.Started, cancelling()}
			a := b.do(name, c.method, c.path, c.body)
			require.Equal(t, c.want[i], a.status, "%s %s as %s: %s", c.method, c.path, name, a.body)
			if a.status >= 400 {
				p := a.problem(t)
				require.Contains(t, []wire.Code{wire.CodeForbidden, wire.CodeUnknown}, p.Code)
				require.Equal(t, before, []any{len(b.ops.Steered), b.ops.Started, cancelling()})
			}
		}
	}
	require.Equal(t, 3, b.ops.Started)
	require.True(t, cancelling())
}

// A caller cannot find out what is there beyond its clusters.
func TestForeignIsLikeUnknown(t *testing.T) {
	b := newBed(t)
	b.ops.Add("op-prod", "prod", "Running")
	for _, suffix := range []string{"", "/wait", "/events"} {
		foreign := b.do("devop", "GET", "/v1/operations/op-prod"+suffix, "", wire.HeaderRequestID, "same")
		unknown := b.do("devop", "GET", "/v1/operations/op-none"+suffix, "", wire.HeaderRequestID, "same")
		require.Equal(t, strings.ReplaceAll(string(unknown.body), "op-none", "op-prod"), string(foreign.body))
	}
	a := b.do("devop", "POST", "/v1/operations", `{"kind":"drain","cluster":"dev","nodes":["w1"]}`, wire.HeaderIdempotencyKey, "op-prod")
	p := a.problem(t)
	require.Equal(t, wire.CodeConflict, p.Code)
	require.Nil(t, p.Exists)
	require.NotContains(t, string(a.body), `"prod"`)

	var list wire.OperationList
	b.ops.Add("op-dev", "dev", "Running")
	b.ok("devop", "GET", "/v1/operations", &list)
	require.Len(t, list.Operations, 1)
	require.Equal(t, "op-dev", list.Operations[0].ID)
	var clusters wire.ClusterList
	b.ok("devop", "GET", "/v1/clusters", &clusters)
	require.Len(t, clusters.Clusters, 1)
	require.Equal(t, "dev", clusters.Clusters[0].Cluster)
	require.Equal(t, wire.CodeForbidden, b.do("devop", "GET", "/v1/clusters/nowhere", "").problem(t).Code)
	require.Contains(t, b.do("ada", "GET", "/v1/clusters/nowhere/plan?kind=upgrade&to=1.37.2", "").problem(t).Detail, `"nowhere"`)
}

func TestSubmitOnceByKey(t *testing.T) {
	b := newBed(t)
	var op ops.Operation
	a := b.do("otto", "POST", "/v1/operations", drainW1, wire.HeaderIdempotencyKey, "drain-1")
	require.Equal(t, http.StatusAccepted, a.status)
	require.Equal(t, "/v1/operations/drain-1", a.header.Get("Location"))
	require.NoError(t, json.Unmarshal(a.body, &op))
	require.Equal(t, ops.Request{ID: "drain-1", Kind: operation.KindDrain, Cluster: "prod", Nodes: []string{"w1"}}, op.Request)

	a = b.do("otto", "POST", "/v1/operations", drainW1, wire.HeaderIdempotencyKey, "drain-1")
	require.Equal(t, http.StatusOK, a.status)
	require.Equal(t, "/v1/operations/drain-1", a.header.Get("Location"))

	a = b.do("otto", "POST", "/v1/operations", strings.Replace(drainW1, "w1", "w2", 1), wire.HeaderIdempotencyKey, "drain-1")
	p := a.problem(t)
	require.Equal(t, http.StatusConflict, a.status)
	require.Equal(t, wire.CodeConflict, p.Code)
	require.Equal(t, []string{"w1"}, p.Exists.Nodes)
	require.Equal(t, 1, b.ops.Started)

	a = b.do("otto", "POST", "/v1/operations", drainW1)
	require.Equal(t, http.StatusAccepted, a.status)
	require.NoError(t, json.Unmarshal(a.body, &op))
	require.Regexp(t, `^drain-prod-\d{8}-\d{6}-[0-9a-f]{4}$`, op.ID)
	require.Equal(t, 2, b.ops.Started)
}

// Everything that is wrong with a request is told, precisely, and starts nothing.
func TestBadRequests(t *testing.T) {
	b := newBed(t)
	b.ops.Add("op-1", "prod", "Running")
	b.ops.Add("over", "prod", "Done")
	for name, c := range map[string]struct {
		method, path, body string
		headers            []string
		status             int
		code               wire.Code
		detail             string
	}{
		"malformed":       {"POST", "/v1/operations", "{", nil, 400, wire.CodeBadRequest, "it ends too early"},
		"unknown field":   {"POST", "/v1/operations", `{"kind":"drain","cluster":"prod","node":"w1"}`, nil, 400, wire.CodeBadRequest, `unknown field "node"`},
		"nothing":         {"POST", "/v1/operations", "{}", nil, 400, wire.CodeBadRequest, `no kind of operation ""`},
		"no nodes":        {"POST", "/v1/operations", `{"kind":"drain","cluster":"prod"}`, nil, 400, wire.CodeBadRequest, "no node to drain is named"},
		"bad key":         {"POST", "/v1/operations", drainW1, []string{wire.HeaderIdempotencyKey, "a/b"}, 400, wire.CodeBadRequest, wire.HeaderIdempotencyKey},
		"no media type":   {"POST", "/v1/operations", drainW1, []string{"Content-Type", ""}, 415, wire.CodeMediaType, "Content-Type must be application/json"},
		"form":            {"POST", "/v1/operations", drainW1, []string{"Content-Type", "application/x-www-form-urlencoded"}, 415, wire.CodeMediaType, "x-www-form"},
		"large":           {"POST", "/v1/operations", strings.Repeat(" ", 10<<20), nil, 413, wire.CodeTooLarge, "larger than 1048576 bytes"},
		"cancel body":     {"POST", "/v1/operations/op-1/cancel", `{"why":"x"}`, nil, 400, wire.CodeBadRequest, `unknown field "why"; known here: none`},
		"skip what":       {"POST", "/v1/operations/op-1/skip-node", "", nil, 400, wire.CodeBadRequest, `"node" is required`},
		"not now":         {"POST", "/v1/operations/over/pause", "", nil, 409, wire.CodeNotNow, "it is over"},
		"unknown":         {"GET", "/v1/operations/none", "", nil, 404, wire.CodeUnknown, `"none"`},
		"node's workflow": {"GET", "/v1/operations/op-1%2Fw1", "", nil, 404, wire.CodeUnknown, "op-1/w1"},
		"no route":        {"GET", "/v2/operations", "", nil, 404, wire.CodeUnknown, "/v2/operations"},
		"trailing slash":  {"GET", "/v1/operations/", "", nil, 404, wire.CodeUnknown, "/v1/operations/"},
		"not clean":       {"GET", "/v1/../v1/operations", "", nil, 404, wire.CodeUnknown, "nothing at"},
		"method":          {"DELETE", "/v1/operations/op-1", "", nil, 405, wire.CodeMethod, "DELETE is not possible here, only GET"},
		"head":            {"PUT", "/v1/operations", "", nil, 405, wire.CodeMethod, "only GET, POST"},
		"parameter":       {"GET", "/v1/operations?cluser=prod", "", nil, 400, wire.CodeBadRequest, `unknown parameter "cluser"`},
		"parameter twice": {"GET", "/v1/operations?cluster=prod&cluster=dev", "", nil, 400, wire.CodeBadRequest, "comes twice"},
		"limit":           {"GET", "/v1/operations?limit=0", "", nil, 400, wire.CodeBadRequest, "from 1 to 1000"},
		"kind":            {"GET", "/v1/operations?kind=explode", "", nil, 400, wire.CodeBadRequest, "explode"},
		"open":            {"GET", "/v1/operations?open=yes", "", nil, 400, wire.CodeBadRequest, "true or false"},
		"timeout":         {"GET", "/v1/operations/op-1/wait?timeout=1h", "", nil, 400, wire.CodeBadRequest, "from 1s to 10m"},
		"types":           {"GET", "/v1/operations/op-1/events?types=log,noise", "", nil, 400, wire.CodeBadRequest, `no type "noise"`},
		"tail and after":  {"GET", "/v1/operations/op-1/events?tail=3&after=1", "", nil, 400, wire.CodeBadRequest, "does not go with"},
		"place":           {"GET", "/v1/operations/op-1/events?after=rubbish", "", nil, 400, wire.CodeBadRequest, "no such place"},
		"plan of a drain": {"GET", "/v1/clusters/prod/plan?kind=drain", "", nil, 400, wire.CodeBadRequest, "upgrade or scale-down"},
		"no cluster":      {"GET", "/v1/clusters/none", "", nil, 404, wire.CodeUnknown, `"none"`},
	} {
		a := b.do("ada", c.method, c.path, c.body, c.headers...)
		p := a.problem(t)
		require.Equal(t, c.status, a.status, "%s: %s", name, a.body)
		require.Equal(t, c.code, p.Code, name)
		require.Contains(t, p.Detail, c.detail, name)
		if c.status == 405 {
			require.NotEmpty(t, a.header.Get("Allow"))
		}
	}
	require.Zero(t, b.ops.Started)
}

// A body whose length is not told is bounded too.
func TestLargeChunkedBody(t *testing.T) {
	b := newBed(t)
	r, err := http.NewRequestWithContext(t.Context(), "POST", b.url+"/v1/operations", struct{ *strings.Reader }{strings.NewReader(`{"cluster":"` + strings.Repeat("x", 2<<20))})
	require.NoError(t, err)
	r.ContentLength = -1
	r.Header.Set("Authorization", "Bearer "+b.tokens["otto"])
	r.Header.Set("Content-Type", "application/json")
	response, err := b.client.Do(r)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	require.Equal(t, http.StatusRequestEntityTooLarge, response.StatusCode)
}

func TestPlanAsksWhatWasAsked(t *testing.T) {
	b := newBed(t)
	b.ok("vera", "GET", "/v1/clusters/prod/plan?kind=upgrade&to=1.37.2&hops=1.36.3,1.36.9", nil)
	require.Equal(t, operation.KindUpgrade, b.clusters.Asked.Kind)
	require.Equal(t, version.Route{Hops: []version.Version{"1.36.3", "1.36.9"}, Target: "1.37.2"}, b.clusters.Asked.Route)
	b.ok("vera", "GET", "/v1/clusters/dev/plan?kind=scale-down&nodes=w1,w2", nil)
	require.Equal(t, []string{"w1", "w2"}, b.clusters.Asked.Nodes)
	b.ok("vera", "GET", "/v1/clusters/dev/plan?kind=scale-down&count=2", nil)
	require.Equal(t, 2, b.clusters.Asked.Count)
}

func TestSteeringIsPassedOn(t *testing.T) {
	b := newBed(t)
	b.ops.Add("op-1", "prod", "Running")
	a := b.do("otto", "POST", "/v1/operations/op-1/retry", `{"node":"w2"}`, wire.HeaderIdempotencyKey, "k-1")
	require.Equal(t, http.StatusOK, a.status, "%s", a.body)
	require.JSONEq(t, `{"operation":"op-1","action":"retry-now","node":"w2","answer":"as you say"}`, string(a.body))
	require.Equal(t, []ops.Steering{{Action: ops.RetryNow, Node: "w2", Key: "k-1"}}, b.ops.Steered)
}

func TestRequestIDs(t *testing.T) {
	b := newBed(t)
	require.Equal(t, "mine.1-2_3", b.do("", "GET", "/healthz", "", wire.HeaderRequestID, "mine.1-2_3").header.Get(wire.HeaderRequestID))
	for _, bad := range []string{"", "a b", "a\tb", strings.Repeat("a", 65), "é"} {
		require.Regexp(t, "^[0-9a-f]{16}$", b.do("", "GET", "/healthz", "", wire.HeaderRequestID, bad).header.Get(wire.HeaderRequestID))
	}
}

// Every call that would change something leaves one line, and no token.
func TestAudit(t *testing.T) {
	b := newBed(t)
	b.ops.Add("op-1", "prod", "Running")
	b.do("otto", "POST", "/v1/operations", drainW1, wire.HeaderIdempotencyKey, "new-1", wire.HeaderRequestID, "r1", "X-Forwarded-For", "192.0.2.1")
	b.do("vera", "POST", "/v1/operations/op-1/cancel", "", wire.HeaderRequestID, "r2")
	b.do("Bearer ebb_wrong", "POST", "/v1/operations/op-1/pause", "", wire.HeaderRequestID, "r3")
	b.do("otto", "DELETE", "/v1/operations/op-1", "", wire.HeaderRequestID, "r4")
	b.do("otto", "GET", "/v1/operations/op-1", "", wire.HeaderRequestID, "r5")
	eventually(t, "five requests are logged", func() bool { return b.logs.FilterMessage("request").Len() == 5 })
	entries := b.logs.FilterMessage("audit").All()
	require.Len(t, entries, 4)
	want := []map[string]any{
		{"request": "r1", "principal": "token:otto", "method": "POST", "route": "/v1/operations", "operation": "new-1", "cluster": "prod", "status": int64(202), "remote": "127.0.0.1", "forwarded": "192.0.2.1"},
		{"request": "r2", "principal": "token:vera", "method": "POST", "route": "/v1/operations/{id}/cancel", "operation": "op-1", "status": int64(403), "code": "forbidden", "remote": "127.0.0.1"},
		{"request": "r3", "method": "POST", "route": "/v1/operations/{id}/pause", "operation": "op-1", "status": int64(401), "code": "unauthenticated", "remote": "127.0.0.1"},
		{"request": "r4", "principal": "token:otto", "method": "DELETE", "route": "unknown", "status": int64(405), "code": "method", "remote": "127.0.0.1"},
	}
	for i, e := range entries {
		require.Equal(t, want[i], e.ContextMap())
		require.Equal(t, "audit", e.LoggerName)
	}
	for _, e := range b.logs.All() {
		text, err := json.Marshal(e.ContextMap())
		require.NoError(t, err)
		for _, token := range b.tokens {
			require.NotContains(t, string(text)+e.Message, token)
		}
	}
}
