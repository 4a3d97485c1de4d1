package server

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"ebb/internal/api/apitest"
	"ebb/internal/api/auth"
	"ebb/internal/api/wire"
)

func oidcOptions(i *apitest.Issuer) auth.OIDCOptions {
	return auth.OIDCOptions{Issuer: i.URL, Audience: "ebb", Bindings: []auth.Binding{
		{Claim: "groups", Value: "platform", Grant: auth.Grant{Role: auth.Operator, Clusters: []string{"prod"}}},
		{Claim: "groups", Value: "all", Grant: auth.Grant{Role: auth.Viewer, Clusters: []string{"*"}}},
		{Claim: "sub", Value: "root", Grant: auth.Grant{Role: auth.Admin, Clusters: []string{"*"}}},
	}}
}

func TestOIDCTokens(t *testing.T) {
	i, key := apitest.NewIssuer(t)
	b := newBed(t, func(o *Options) { o.Auth = auth.Union{o.Auth, auth.NewOIDC(oidcOptions(i))} })
	b.ops.Add("op-1", "prod", "Running")
	b.ops.Add("op-2", "dev", "Running")
	as := func(change map[string]any) string { return "Bearer " + i.Sign(t, apitest.RS256(key), change) }

	good := as(nil)
	b.ok(good, "GET", "/v1/operations/op-2", nil)
	require.Equal(t, http.StatusOK, b.do(good, "POST", "/v1/operations/op-1/cancel", "").status)
	require.Equal(t, wire.CodeForbidden, b.do(good, "POST", "/v1/operations/op-2/cancel", "").problem(t).Code)
	require.Equal(t, wire.CodeForbidden, b.do(as(map[string]any{"groups": "other"}), "GET", "/v1/operations", "").problem(t).Code)
	b.ok(as(map[string]any{"sub": "root"}), "POST", "/v1/lifecycle/uncordon", nil)

	other := apitest.NewKey(t, "one")
	shared := jose.SigningKey{Algorithm: jose.HS256, Key: []byte(strings.Repeat("k", 32))}
	tampered := strings.Split(i.Sign(t, apitest.RS256(key), nil), ".")
	tampered[1] = strings.Split(i.Sign(t, apitest.RS256(key), map[string]any{"sub": "root"}), ".")[1]
	for name, c := range map[string]struct{ token, detail string }{
		"expired":        {as(map[string]any{"exp": time.Now().Add(-time.Minute).Unix()}), "the token expired at 20"},
		"not yet":        {as(map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}), "before the nbf"},
		"audience":       {as(map[string]any{"aud": "other"}), "expected audience"},
		"issuer":         {as(map[string]any{"iss": "https://evil.example.com"}), "different provider"},
		"other key":      {"Bearer " + i.Sign(t, apitest.RS256(other), nil), "failed to verify"},
		"shared key":     {"Bearer " + i.Sign(t, shared, nil), "unexpected signature algorithm"},
		"tampered":       {"Bearer " + strings.Join(tampered, "."), "failed to verify"},
		"no name":        {as(map[string]any{"sub": ""}), `no claim "sub"`},
		"garbage":        {"Bearer a.b.c", "malformed jwt"},
		"none algorithm": {"Bearer eyJhbGciOiJub25lIn0." + tampered[1] + ".", "malformed"},
	} {
		a := b.do(c.token, "POST", "/v1/operations", drainW1)
		require.Equal(t, http.StatusUnauthorized, a.status, name)
		require.Contains(t, a.problem(t).Detail, c.detail, name)
	}
	require.Zero(t, b.ops.Started)
	entries := b.logs.FilterMessage("audit").FilterField(zap.String("operation", "op-1")).All()
	require.Len(t, entries, 1)
	require.Equal(t, "oidc:alice", entries[0].ContextMap()["principal"])
}

// A gateway starts while its issuer is away, says so, and takes tokens once it is there.
func TestOIDCIssuerThatIsAway(t *testing.T) {
	i, key := apitest.NewIssuer(t)
	i.Down.Store(true)
	o := oidcOptions(i)
	clock := time.Now()
	o.Now = func() time.Time { return clock }
	auth := auth.NewOIDC(o)
	b := newBed(t, func(o *Options) { o.Auth = auth })
	token := "Bearer " + i.Sign(t, apitest.RS256(key), map[string]any{"exp": clock.Add(24 * time.Hour).Unix()})
	for range 3 {
		a := b.do(token, "GET", "/v1/operations", "")
		require.Equal(t, http.StatusServiceUnavailable, a.status)
		require.Equal(t, wire.CodeIssuerAway, a.problem(t).Code)
		require.NotEmpty(t, a.header.Get("Retry-After"))
	}
	require.EqualValues(t, 1, i.Asked.Load(), "it is not asked for each token")
	i.Down.Store(false)
	i.KeysDown.Store(true)
	clock = clock.Add(5 * time.Second)
	require.Equal(t, wire.CodeIssuerAway, b.do(token, "GET", "/v1/operations", "").problem(t).Code)
	i.KeysDown.Store(false)
	b.ok(token, "GET", "/v1/operations", nil)

	second := apitest.NewKey(t, "two")
	i.Keys.Store(&[]jose.JSONWebKey{second})
	b.ok("Bearer "+i.Sign(t, apitest.RS256(second), nil), "GET", "/v1/operations", nil)
}

// Forged tokens with unknown keys, for which the issuer cannot be asked so often, are
// limited by address like others, and keep nobody out who has a good one.
func TestOIDCUnknownKeysAreLimitedByAddress(t *testing.T) {
	i, key := apitest.NewIssuer(t)
	b := newBed(t, func(o *Options) { o.Auth = auth.Union{o.Auth, auth.NewOIDC(oidcOptions(i))} })
	good := "Bearer " + i.Sign(t, apitest.RS256(key), nil)
	b.ok(good, "GET", "/v1/operations", nil)
	forged := "Bearer " + i.Sign(t, apitest.RS256(apitest.NewKey(t, "unknown")), nil)
	limited := 0
	for range 4 * auth.FailuresBurst {
		if b.do(forged, "GET", "/v1/operations", "").status == http.StatusTooManyRequests {
			limited++
		}
	}
	require.Positive(t, limited)
	b.ok(good, "GET", "/v1/operations", nil)
}
