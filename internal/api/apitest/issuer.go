package apitest

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/stretchr/testify/require"
)

// Issuer is a small OpenID Connect issuer.
type Issuer struct {
	*httptest.Server
	Keys     atomic.Pointer[[]jose.JSONWebKey]
	Down     atomic.Bool  // discovery fails
	KeysDown atomic.Bool  // the key set cannot be fetched
	Asked    atomic.Int64 // requests so far
}

// NewIssuer returns an issuer and its key.
func NewIssuer(t *testing.T) (*Issuer, jose.JSONWebKey) {
	t.Helper()
	i := &Issuer{}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		i.Asked.Add(1)
		if i.Down.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{
			"issuer": i.URL, "jwks_uri": i.URL + "/keys", "authorization_endpoint": i.URL + "/a", "token_endpoint": i.URL + "/t",
			"id_token_signing_alg_values_supported": []string{"RS256", "HS256", "none"},
		})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		i.Asked.Add(1)
		if i.KeysDown.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		set := jose.JSONWebKeySet{}
		for _, k := range *i.Keys.Load() {
			set.Keys = append(set.Keys, k.Public())
		}
		_ = json.NewEncoder(w).Encode(set)
	})
	i.Server = httptest.NewServer(mux)
	t.Cleanup(i.Close)
	key := NewKey(t, "one")
	i.Keys.Store(&[]jose.JSONWebKey{key})
	return i, key
}

// NewKey returns a new key with an ID.
func NewKey(t *testing.T, id string) jose.JSONWebKey {
	t.Helper()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	return jose.JSONWebKey{Key: private, KeyID: id, Algorithm: "RS256", Use: "sig"}
}

// Sign returns a token of alice with some claims changed.
func (i *Issuer) Sign(t *testing.T, key jose.SigningKey, change map[string]any) string {
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

// RS256 returns a key for use with Sign.
func RS256(key jose.JSONWebKey) jose.SigningKey {
	return jose.SigningKey{Algorithm: jose.RS256, Key: key}
}
