package gateway

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/stretchr/testify/require"

	"ebb/internal/api/auth"
	"ebb/internal/api/wire"
)

// issuer is an OpenID Connect issuer that really signs.
type issuer struct {
	t      *testing.T
	url    string
	signer jose.Signer
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	key := jose.JSONWebKey{Key: private, KeyID: "one", Algorithm: "RS256", Use: "sig"}
	i := &issuer{t: t}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": i.url, "jwks_uri": i.url + "/keys", "id_token_signing_alg_values_supported": []string{"RS256"}})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{key.Public()}})
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	i.url = server.URL
	i.signer, err = jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: key}, nil)
	require.NoError(t, err)
	return i
}

// token returns one of alice, of the group platform, with some claims changed.
func (i *issuer) token(change map[string]any) string {
	i.t.Helper()
	claims := map[string]any{"iss": i.url, "aud": "ebb", "sub": "alice", "groups": []string{"platform"}, "exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(claims, change)
	token, err := jwt.Signed(i.signer).Claims(claims).Serialize()
	require.NoError(i.t, err)
	return token
}

// Whatever is refused is refused with a precise problem, and nothing is started or
// changed by it.
func TestRefusals(t *testing.T) {
	i := newIssuer(t)
	s := newEnvironment(t)
	s.addToken("prodop", auth.Operator, "prod")
	g := s.newGateway("gateway", fmt.Sprintf("  oidc: {issuer: %q, audience: ebb, bindings: [{claim: groups, value: platform, role: operator, clusters: [prod]}]}\n", i.url))
	g.start()
	s.startOperation()
	submit := drainRequest("prod", "w1")
	bearer := func(token string) []string { return []string{"Authorization", "Bearer " + token} }
	for name, c := range map[string]struct {
		who, method, path, body string
		headers                 []string
		status                  int
		code                    wire.Code
		detail                  string
	}{
		"no token":             {"", "POST", "/v1/operations", submit, nil, 401, wire.CodeUnauthenticated, "send a token"},
		"wrong token":          {"", "POST", "/v1/operations", submit, bearer("ebb_" + strings.Repeat("A", 43)), 401, wire.CodeUnauthenticated, "not known here"},
		"expired":              {"", "POST", "/v1/operations", submit, bearer(i.token(map[string]any{"exp": time.Now().Add(-time.Hour).Unix()})), 401, wire.CodeUnauthenticated, "the token expired at"},
		"other audience":       {"", "POST", "/v1/operations", submit, bearer(i.token(map[string]any{"aud": "x"})), 401, wire.CodeUnauthenticated, "audience"},
		"no group":             {"", "POST", "/v1/operations", submit, bearer(i.token(map[string]any{"groups": []string{}})), 403, wire.CodeForbidden, "alice"},
		"OIDC, other cluster":  {"", "POST", "/v1/operations", drainRequest("dev", "w1"), bearer(i.token(nil)), 403, wire.CodeForbidden, `on cluster "dev"`},
		"viewer cancels":       {"vera", "POST", "/v1/operations/op-1/cancel", "", nil, 403, wire.CodeForbidden, "takes the role operator, which vera does not have"},
		"viewer submits":       {"vera", "POST", "/v1/operations", submit, nil, 403, wire.CodeForbidden, "role operator"},
		"other cluster":        {"devop", "POST", "/v1/operations", submit, nil, 403, wire.CodeForbidden, `devop does not have the role operator on cluster "prod"`},
		"other's operation":    {"devop", "POST", "/v1/operations/op-1/cancel", "", nil, 404, wire.CodeUnknown, "none of yours"},
		"operator cordons":     {"otto", "POST", "/v1/lifecycle/cordon", "", nil, 403, wire.CodeForbidden, "role admin on all clusters"},
		"10 MB":                {"otto", "POST", "/v1/operations", `{"cluster":"` + strings.Repeat("x", 10<<20) + `"}`, nil, 413, wire.CodeTooLarge, "larger than 1048576 bytes"},
		"malformed":            {"otto", "POST", "/v1/operations", `{"kind":`, nil, 400, wire.CodeBadRequest, "ends too early"},
		"unknown field":        {"otto", "POST", "/v1/operations", `{"kind":"drain","cluster":"prod","node":"w1"}`, nil, 400, wire.CodeBadRequest, `unknown field "node"`},
		"wrong type":           {"otto", "POST", "/v1/operations", `{"kind":"drain","cluster":"prod","nodes":"w1"}`, nil, 400, wire.CodeBadRequest, `field "nodes" must be a list`},
		"something behind":     {"otto", "POST", "/v1/operations", submit + submit, nil, 400, wire.CodeBadRequest, "follows the JSON object"},
		"makes no sense":       {"otto", "POST", "/v1/operations", `{"kind":"drain","cluster":"prod"}`, nil, 400, wire.CodeBadRequest, "no node to drain"},
		"media type":           {"otto", "POST", "/v1/operations", submit, []string{"Content-Type", "text/plain"}, 415, wire.CodeMediaType, "application/json"},
		"unknown route":        {"otto", "POST", "/v1/operatons", submit, nil, 404, wire.CodeUnknown, "/v1/operatons"},
		"unknown operation":    {"otto", "POST", "/v1/operations/op-2/cancel", "", nil, 404, wire.CodeUnknown, `"op-2"`},
		"a reconciler's ID":    {"otto", "POST", "/v1/operations/op-1%2Fw1/cancel", "", nil, 404, wire.CodeUnknown, "op-1/w1"},
		"method":               {"otto", "DELETE", "/v1/operations/op-1", "", nil, 405, wire.CodeMethod, "only GET"},
		"place":                {"vera", "GET", "/v1/operations/op-1/events?after=rubbish", "", nil, 400, wire.CodeBadRequest, "rubbish"},
		"another one's key":    {"otto", "POST", "/v1/operations", drainRequest("prod", "w2"), []string{wire.HeaderIdempotencyKey, "op-1"}, 409, wire.CodeConflict, "exists already"},
		"foreign key, foreign": {"devop", "POST", "/v1/operations", drainRequest("dev", "w2"), []string{wire.HeaderIdempotencyKey, "op-1"}, 409, wire.CodeConflict, "is taken"},
	} {
		a := g.do(c.who, c.method, c.path, c.body, append(c.headers, wire.HeaderRequestID, strings.ReplaceAll(name, " ", "-"))...)
		require.Equal(t, c.status, a.status, "%s: %s", name, a.body)
		p := a.problem(t, c.code)
		require.Contains(t, p.Detail, c.detail, name)
		require.Equal(t, a.header.Get(wire.HeaderRequestID), p.Instance)
		if c.status == http.StatusUnauthorized {
			require.Contains(t, a.header.Get("WWW-Authenticate"), "Bearer", name)
		}
	}
	require.Equal(t, 1, s.operationCount(), "the one of the test itself")
	op, err := s.ops.Get(t.Context(), "op-1")
	require.NoError(t, err)
	require.False(t, op.Cancelling)
	state, _, _ := g.lifecycle()
	require.Equal(t, "Serving", state)

	a := g.do("", "POST", "/v1/operations", submit, bearer(i.token(nil))...)
	require.Equal(t, http.StatusAccepted, a.status, "the same with what it takes: %s", a.body)
	s.eventually("it is listed", func() bool { return s.operationCount() >= 2 })
	require.Equal(t, 2, s.operationCount(), "and nothing else")
	g.requireAudit(i)
}

// requireAudit checks that every refused call that would have changed something is in
// the audit, and no token anywhere in the log.
func (g *gateway) requireAudit(i *issuer) {
	g.t.Helper()
	log, err := os.ReadFile(g.path(g.name + ".log"))
	require.NoError(g.t, err)
	lines := 0
	for line := range strings.Lines(string(log)) {
		var entry struct {
			Msg, Request, Principal, Code, Operation string
			Status                                   int
		}
		if json.Unmarshal([]byte(line), &entry) != nil || entry.Msg != "audit" {
			continue
		}
		lines++
		if entry.Request == "viewer-cancels" {
			require.Equal(g.t, []any{"token:vera", "forbidden", "op-1", 403}, []any{entry.Principal, entry.Code, entry.Operation, entry.Status})
		}
	}
	require.Equal(g.t, 25, lines, "24 refused ones but for the read, and the good one")
	for name, token := range g.tokens {
		require.NotContains(g.t, string(log), token, name)
	}
	require.NotContains(g.t, string(log), i.token(nil)[:40])
}
