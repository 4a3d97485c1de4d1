package auth

import (
	"context"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"

	"ebb/internal/api/apitest"
)

// Tokens with unknown keys do not have the issuer asked for each.
func TestOIDCIssuerIsAskedSeldom(t *testing.T) {
	i, key := apitest.NewIssuer(t)
	auth := NewOIDC(OIDCOptions{Issuer: i.URL, Audience: "ebb"})
	_, err := auth.Authenticate(context.Background(), i.Sign(t, apitest.RS256(key), nil))
	require.NoError(t, err)
	unknown := i.Sign(t, apitest.RS256(apitest.NewKey(t, "unknown")), nil)
	for range 100 {
		_, err := auth.Authenticate(context.Background(), unknown)
		require.Error(t, err)
	}
	require.Less(t, i.Asked.Load(), int64(40))
	_, err = auth.Authenticate(context.Background(), i.Sign(t, apitest.RS256(key), nil))
	require.NoError(t, err, "known keys need nobody to be asked")
}

// Only the boolean true says that an address is verified.
func TestOIDCUnverifiedEmail(t *testing.T) {
	i, key := apitest.NewIssuer(t)
	auth := NewOIDC(OIDCOptions{Issuer: i.URL, Audience: "ebb", UsernameClaim: "email"})
	for _, verified := range []any{false, "true", "false", 1, nil} {
		claims := map[string]any{"email": "a@example.com", "email_verified": verified}
		_, err := auth.Authenticate(t.Context(), i.Sign(t, apitest.RS256(key), claims))
		require.ErrorContains(t, err, "not verified", "%v", verified)
	}
	_, err := auth.Authenticate(t.Context(), i.Sign(t, apitest.RS256(key), map[string]any{"email": "a@example.com"}))
	require.ErrorContains(t, err, "not verified", "an issuer that does not say")
	p, err := auth.Authenticate(t.Context(), i.Sign(t, apitest.RS256(key), map[string]any{"email": "a@example.com", "email_verified": true}))
	require.NoError(t, err)
	require.Equal(t, "oidc:a@example.com", p.String())
}

// A key that the issuer has withdrawn is good for ten minutes more; while the issuer does
// not answer, its keys are good for an hour.
func TestOIDCWithdrawnKeyEnds(t *testing.T) {
	i, key := apitest.NewIssuer(t)
	clock := time.Now()
	auth := NewOIDC(OIDCOptions{Issuer: i.URL, Audience: "ebb", Now: func() time.Time { return clock }})
	token := i.Sign(t, apitest.RS256(key), map[string]any{"exp": clock.Add(24 * time.Hour).Unix()})
	valid := func() bool {
		_, err := auth.Authenticate(t.Context(), token)
		return err == nil
	}
	require.True(t, valid())
	clock = clock.Add(keysLifetime)
	require.True(t, valid(), "the key is still there")
	i.KeysDown.Store(true)
	clock = clock.Add(keysLifetime)
	require.True(t, valid(), "the issuer does not answer")
	clock = clock.Add(keysMaxAge)
	_, err := auth.Authenticate(t.Context(), token)
	require.ErrorContains(t, err, "the keys of")
	i.KeysDown.Store(false)
	require.True(t, valid())

	i.Keys.Store(&[]jose.JSONWebKey{apitest.NewKey(t, "two")})
	require.True(t, valid(), "nobody has looked yet")
	clock = clock.Add(keysLifetime)
	var refused *TokenError
	_, err = auth.Authenticate(t.Context(), token)
	require.ErrorAs(t, err, &refused)
}
