package auth

import (
	"context"
	"testing"

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

func TestOIDCUnverifiedEmail(t *testing.T) {
	i, key := apitest.NewIssuer(t)
	auth := NewOIDC(OIDCOptions{Issuer: i.URL, Audience: "ebb", UsernameClaim: "email"})
	_, err := auth.Authenticate(t.Context(), i.Sign(t, apitest.RS256(key), map[string]any{"email": "a@example.com", "email_verified": false}))
	require.ErrorContains(t, err, "not verified")
	p, err := auth.Authenticate(t.Context(), i.Sign(t, apitest.RS256(key), map[string]any{"email": "a@example.com", "email_verified": true}))
	require.NoError(t, err)
	require.Equal(t, "oidc:a@example.com", p.String())
}
