package auth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/time/rate"
)

const (
	// discoveryInterval is the least time between two attempts to read the discovery
	// document.
	discoveryInterval = 5 * time.Second
	// issuerTimeout is the timeout of a request to the issuer.
	issuerTimeout = 10 * time.Second
)

// OIDCOptions say which ID tokens are accepted, and which roles they grant.
type OIDCOptions struct {
	Issuer        string
	Audience      string
	UsernameClaim string // default "sub"
	Bindings      []Binding
	Client        *http.Client // default: a new one
	Now           func() time.Time
}

// Binding grants a role to tokens with a value in a claim.
type Binding struct {
	Claim string
	Value string // equal to the claim, or to an element of it if it is a list
	Grant Grant
}

// OIDC accepts the ID tokens of an OpenID Connect issuer.
type OIDC struct {
	options OIDCOptions

	mu             sync.Mutex
	verifier       *oidc.IDTokenVerifier // nil before discovery has succeeded
	keys           *fetchErrorKeySet
	discoveryTried time.Time
	discoveryErr   error
}

var _ Authenticator = (*OIDC)(nil)

// NewOIDC returns an Authenticator for an issuer. The issuer is not contacted before
// the first token, so that a gateway can start while it is down.
func NewOIDC(o OIDCOptions) *OIDC {
	if o.UsernameClaim == "" {
		o.UsernameClaim = "sub"
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Client == nil {
		o.Client = &http.Client{}
	}
	// A token with an unknown key ID makes the key set be fetched again. The rate
	// limit protects the issuer from forged tokens.
	limited := *o.Client
	limited.Timeout = issuerTimeout
	limited.Transport = &rateLimitedTransport{next: o.Client.Transport, limit: rate.NewLimiter(1, 10)}
	o.Client = &limited
	return &OIDC{options: o}
}

// rateLimitedTransport limits the rate of requests to the issuer.
type rateLimitedTransport struct {
	next  http.RoundTripper
	limit *rate.Limiter
}

func (p *rateLimitedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if !p.limit.Allow() {
		return nil, errors.New("the issuer was asked too often within the last seconds")
	}
	if p.next == nil {
		return http.DefaultTransport.RoundTrip(r)
	}
	return p.next.RoundTrip(r)
}

// Authenticate implements Authenticator.
func (o *OIDC) Authenticate(ctx context.Context, token string) (*Principal, error) {
	if strings.Count(token, ".") != 2 {
		return nil, errNotRecognized
	}
	verifier, keys, err := o.discover()
	if err != nil {
		return nil, err
	}
	var unreachable error
	valid, err := verifier.Verify(keys.withFetchError(ctx, &unreachable), token)
	var expired *oidc.TokenExpiredError
	switch {
	case errors.As(err, &expired):
		return nil, &TokenError{Reason: fmt.Sprintf("the token expired at %s: get a new one", expired.Expiry.UTC().Format(time.RFC3339))}
	case unreachable != nil:
		return nil, fmt.Errorf("the keys of %s: %w", o.options.Issuer, unreachable)
	case err != nil:
		return nil, &TokenError{Reason: strings.TrimPrefix(err.Error(), "oidc: ")}
	}
	return o.principal(valid)
}

// discover returns the verifier of tokens and the key set that it uses. They are made
// from the discovery document when they are first needed.
func (o *OIDC) discover() (*oidc.IDTokenVerifier, *fetchErrorKeySet, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.verifier != nil {
		return o.verifier, o.keys, nil
	}
	now := o.options.Now()
	if o.discoveryErr != nil && now.Sub(o.discoveryTried) < discoveryInterval {
		return nil, nil, o.discoveryErr
	}
	o.discoveryTried = now
	// Not the context of the request: the provider outlives it, and the client has a
	// timeout.
	ctx := oidc.ClientContext(context.Background(), o.options.Client)
	provider, err := oidc.NewProvider(ctx, o.options.Issuer)
	if err != nil {
		o.discoveryErr = fmt.Errorf("ask the issuer %s: %w", o.options.Issuer, err)
		return nil, nil, o.discoveryErr
	}
	var found struct {
		Keys       string   `json:"jwks_uri"`
		Algorithms []string `json:"id_token_signing_alg_values_supported"`
	}
	if err := provider.Claims(&found); err != nil {
		o.discoveryErr = fmt.Errorf("ask the issuer %s: %w", o.options.Issuer, err)
		return nil, nil, o.discoveryErr
	}
	o.keys = newFetchErrorKeySet(func() oidc.KeySet { return oidc.NewRemoteKeySet(ctx, found.Keys) }, o.options.Now)
	o.verifier = oidc.NewVerifier(o.options.Issuer, o.keys, &oidc.Config{
		ClientID: o.options.Audience, Now: o.options.Now, SupportedSigningAlgs: asymmetricAlgorithms(found.Algorithms),
	})
	return o.verifier, o.keys, nil
}

// asymmetricAlgorithms returns the signing algorithms among those offered that need a
// private key.
func asymmetricAlgorithms(offered []string) (good []string) {
	for _, a := range offered {
		switch a {
		case oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.EdDSA:
			good = append(good, a)
		}
	}
	return good
}

// principal returns the principal of a verified token, with the grants that its claims
// are bound to.
func (o *OIDC) principal(token *oidc.IDToken) (*Principal, error) {
	var claims map[string]any
	if err := token.Claims(&claims); err != nil {
		return nil, &TokenError{Reason: "the token's claims cannot be read"}
	}
	name, _ := claims[o.options.UsernameClaim].(string)
	if name == "" {
		return nil, &TokenError{Reason: fmt.Sprintf("the token has no claim %q", o.options.UsernameClaim)}
	}
	// Only the boolean true counts: some issuers let people enter any address, and tell
	// by the claim's absence, or by text, that they have not checked it.
	if verified, _ := claims["email_verified"].(bool); !verified && o.dependsOnEmail() {
		return nil, &TokenError{Reason: "the token's email address is not verified by its issuer"}
	}
	p := &Principal{Name: name, Source: SourceOIDC}
	for _, b := range o.options.Bindings {
		if claimHasValue(claims[b.Claim], b.Value) {
			p.Grants = append(p.Grants, b.Grant)
		}
	}
	return p, nil
}

// dependsOnEmail reports whether the name or a grant depends on the claim "email".
func (o *OIDC) dependsOnEmail() bool {
	return o.options.UsernameClaim == "email" || slices.ContainsFunc(o.options.Bindings, func(b Binding) bool { return b.Claim == "email" })
}

// claimHasValue reports whether a claim equals value, or is a list that contains it.
func claimHasValue(claim any, value string) bool {
	switch c := claim.(type) {
	case string:
		return c == value
	case []any:
		for _, one := range c {
			if text, ok := one.(string); ok && text == value {
				return true
			}
		}
	}
	return false
}
