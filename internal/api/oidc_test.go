package api

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

// issuer is a small OpenID Connect issuer.
type issuer struct {
	*httptest.Server
	keys     atomic.Pointer[[]jose.JSONWebKey]
	down     atomic.Bool
	keysDown atomic.Bool
	asked    atomic.Int64
}

func newIssuer(t *testing.T) (*issuer, jose.JSONWebKey) {
	t.Helper()
	i := &issuer{}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		i.asked.Add(1)
		if i.down.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{
			"issuer": i.URL, "jwks_uri": i.URL + "/keys", "authorization_endpoint": i.URL + "/a", "token_endpoint": i.URL + "/t",
			"id_token_signing_alg_values_supported": []string{"RS256", "HS256", "none"},
		})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		i.asked.Add(1)
		if i.keysDown.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		set := jose.JSONWebKeySet{}
		for _, k := range *i.keys.Load() {
			set.Keys = append(set.Keys, k.Public())
		}
		_ = json.NewEncoder(w).Encode(set)
	})
	i.Server = httptest.NewServer(mux)
	t.Cleanup(i.Close)
	key := newKey(t, "one")
	i.keys.Store(&[]jose.JSONWebKey{key})
	return i, key
}

func newKey(t *testing.T, id string) jose.JSONWebKey {
	t.Helper()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	return jose.JSONWebKey{Key: private, KeyID: id, Algorithm: "RS256", Use: "sig"}
}

// sign makes a token; change alters the claims of a good one.
func (i *issuer) sign(t *testing.T, key jose.SigningKey, change map[string]any) string {
	t.Helper()
	claims := map[string]any{
		"iss": i.URL, "aud": "ebb", "sub": "alice", "groups": []string{"platform", "all"},
		"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(),
	}
	maps.Copy(claims, change)
	signer, err := jose.NewSigner(key, nil)
	require.NoError(t, err)
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	require.NoError(t, err)
	return token
}

func rs256(key jose.JSONWebKey) jose.SigningKey {
	return jose.SigningKey{Algorithm: jose.RS256, Key: key}
}

func (i *issuer) options() OIDCOptions {
	return OIDCOptions{Issuer: i.URL, Audience: "ebb", Bindings: []Binding{
		{Claim: "groups", Value: "platform", Grant: Grant{Operator, []string{"prod"}}},
		{Claim: "groups", Value: "all", Grant: Grant{Viewer, []string{"*"}}},
		{Claim: "sub", Value: "root", Grant: Grant{Admin, []string{"*"}}},
	}}
}

func TestOIDCTokens(t *testing.T) {
	i, key := newIssuer(t)
	b := newBed(t, func(o *Options) { o.Auth = Authenticators{o.Auth, NewOIDC(i.options())} })
	b.ops.add("op-1", "prod", "Running")
	b.ops.add("op-2", "dev", "Running")
	as := func(change map[string]any) string { return "Bearer " + i.sign(t, rs256(key), change) }

	good := as(nil)
	b.ok(good, "GET", "/v1/operations/op-2", nil)
	require.Equal(t, http.StatusOK, b.do(good, "POST", "/v1/operations/op-1/cancel", "").status)
	require.Equal(t, CodeForbidden, b.do(good, "POST", "/v1/operations/op-2/cancel", "").problem(t).Code)
	require.Equal(t, CodeForbidden, b.do(as(map[string]any{"groups": "other"}), "GET", "/v1/operations", "").problem(t).Code)
	b.ok(as(map[string]any{"sub": "root"}), "POST", "/v1/lifecycle/uncordon", nil)

	other := newKey(t, "one")
	shared := jose.SigningKey{Algorithm: jose.HS256, Key: []byte(strings.Repeat("k", 32))}
	tampered := strings.Split(i.sign(t, rs256(key), nil), ".")
	tampered[1] = strings.Split(i.sign(t, rs256(key), map[string]any{"sub": "root"}), ".")[1]
	for name, c := range map[string]struct{ token, detail string }{
		"expired":        {as(map[string]any{"exp": time.Now().Add(-time.Minute).Unix()}), "the token expired at 20"},
		"not yet":        {as(map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}), "before the nbf"},
		"audience":       {as(map[string]any{"aud": "other"}), "expected audience"},
		"issuer":         {as(map[string]any{"iss": "https://evil.example.com"}), "different provider"},
		"other key":      {"Bearer " + i.sign(t, rs256(other), nil), "failed to verify"},
		"shared key":     {"Bearer " + i.sign(t, shared, nil), "unexpected signature algorithm"},
		"tampered":       {"Bearer " + strings.Join(tampered, "."), "failed to verify"},
		"no name":        {as(map[string]any{"sub": ""}), `no claim "sub"`},
		"garbage":        {"Bearer a.b.c", "malformed jwt"},
		"none algorithm": {"Bearer eyJhbGciOiJub25lIn0." + tampered[1] + ".", "malformed"},
	} {
		a := b.do(c.token, "POST", "/v1/operations", drainW1)
		require.Equal(t, http.StatusUnauthorized, a.status, name)
		require.Contains(t, a.problem(t).Detail, c.detail, name)
	}
	require.Zero(t, b.ops.started)
	entries := b.logs.FilterMessage("audit").FilterField(zap.String("operation", "op-1")).All()
	require.Len(t, entries, 1)
	require.Equal(t, "oidc:alice", entries[0].ContextMap()["principal"])
}

// A gateway starts while its issuer is away, says so, and takes tokens once it is there.
func TestOIDCIssuerThatIsAway(t *testing.T) {
	i, key := newIssuer(t)
	i.down.Store(true)
	o := i.options()
	clock := time.Now()
	o.Now = func() time.Time { return clock }
	auth := NewOIDC(o)
	b := newBed(t, func(o *Options) { o.Auth = auth })
	token := "Bearer " + i.sign(t, rs256(key), map[string]any{"exp": clock.Add(24 * time.Hour).Unix()})
	for range 3 {
		a := b.do(token, "GET", "/v1/operations", "")
		require.Equal(t, http.StatusServiceUnavailable, a.status)
		require.Equal(t, CodeIssuerAway, a.problem(t).Code)
		require.NotEmpty(t, a.header.Get("Retry-After"))
	}
	require.EqualValues(t, 1, i.asked.Load(), "it is not asked for each token")
	i.down.Store(false)
	i.keysDown.Store(true)
	clock = clock.Add(discoveryInterval)
	require.Equal(t, CodeIssuerAway, b.do(token, "GET", "/v1/operations", "").problem(t).Code)
	i.keysDown.Store(false)
	b.ok(token, "GET", "/v1/operations", nil)

	second := newKey(t, "two")
	i.keys.Store(&[]jose.JSONWebKey{second})
	b.ok("Bearer "+i.sign(t, rs256(second), nil), "GET", "/v1/operations", nil)
}

// Tokens with unknown keys do not have the issuer asked for each.
func TestOIDCIssuerIsAskedSeldom(t *testing.T) {
	i, key := newIssuer(t)
	auth := NewOIDC(i.options())
	_, err := auth.Authenticate(context.Background(), i.sign(t, rs256(key), nil))
	require.NoError(t, err)
	unknown := i.sign(t, rs256(newKey(t, "unknown")), nil)
	for range 100 {
		_, err := auth.Authenticate(context.Background(), unknown)
		require.Error(t, err)
	}
	require.Less(t, i.asked.Load(), int64(40))
	_, err = auth.Authenticate(context.Background(), i.sign(t, rs256(key), nil))
	require.NoError(t, err, "known keys need nobody to be asked")
}

func TestOIDCUnverifiedEmail(t *testing.T) {
	i, key := newIssuer(t)
	o := i.options()
	o.UsernameClaim = "email"
	auth := NewOIDC(o)
	_, err := auth.Authenticate(t.Context(), i.sign(t, rs256(key), map[string]any{"email": "a@example.com", "email_verified": false}))
	require.ErrorContains(t, err, "not verified")
	p, err := auth.Authenticate(t.Context(), i.sign(t, rs256(key), map[string]any{"email": "a@example.com", "email_verified": true}))
	require.NoError(t, err)
	require.Equal(t, "oidc:a@example.com", p.String())
}
