package api

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
	// discoveryInterval is the least time between two tries to read what an issuer
	// says of itself.
	discoveryInterval = 5 * time.Second
	// issuerTimeout bounds one request to an issuer.
	issuerTimeout = 10 * time.Second
)

// OIDCOptions say whose tokens are accepted and what they are worth.
type OIDCOptions struct {
	Issuer        string
	Audience      string
	UsernameClaim string // default sub
	Bindings      []Binding
	Client        *http.Client // default: one of its own
	Now           func() time.Time
}

// Binding gives a grant to whoever has a value in a claim.
type Binding struct {
	Claim string
	Value string // of the claim, or one of its values when it is a list
	Grant Grant
}

// OIDC accepts the tokens of an OpenID Connect issuer.
type OIDC struct {
	o OIDCOptions

	mu       sync.Mutex
	verifier *oidc.IDTokenVerifier // nil until the issuer has answered
	keys     *keySet
	tried    time.Time
	fault    error
}

var _ Authenticator = (*OIDC)(nil)

// NewOIDC does not ask the issuer yet: a gateway starts while its issuer is away.
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
	// A token with an unknown key makes the keys be read again. The limit keeps
	// those who send made-up tokens from having the issuer asked for each.
	bounded := *o.Client
	bounded.Timeout = issuerTimeout
	bounded.Transport = &patient{next: o.Client.Transport, limit: rate.NewLimiter(1, 10)}
	o.Client = &bounded
	return &OIDC{o: o}
}

// patient limits how often an issuer is asked.
type patient struct {
	next  http.RoundTripper
	limit *rate.Limiter
}

func (p *patient) RoundTrip(r *http.Request) (*http.Response, error) {
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
		return nil, errNotMine
	}
	verifier, keys, err := o.issuer()
	if err != nil {
		return nil, err
	}
	var unreachable error
	valid, err := verifier.Verify(keys.noting(ctx, &unreachable), token)
	var expired *oidc.TokenExpiredError
	switch {
	case errors.As(err, &expired):
		return nil, &TokenError{Reason: fmt.Sprintf("the token expired at %s: get a new one", expired.Expiry.UTC().Format(time.RFC3339))}
	case unreachable != nil:
		return nil, fmt.Errorf("the keys of %s: %w", o.o.Issuer, unreachable)
	case err != nil:
		return nil, &TokenError{Reason: strings.TrimPrefix(err.Error(), "oidc: ")}
	}
	return o.principal(valid)
}

// issuer is what verifies tokens; the first call, and later ones until it has
// answered, ask the issuer for it.
func (o *OIDC) issuer() (*oidc.IDTokenVerifier, *keySet, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.verifier != nil {
		return o.verifier, o.keys, nil
	}
	now := o.o.Now()
	if o.fault != nil && now.Sub(o.tried) < discoveryInterval {
		return nil, nil, o.fault
	}
	o.tried = now
	// Not the caller's context: what is found is for all, and bounded by the client.
	ctx := oidc.ClientContext(context.Background(), o.o.Client)
	provider, err := oidc.NewProvider(ctx, o.o.Issuer)
	if err != nil {
		o.fault = fmt.Errorf("ask the issuer %s: %w", o.o.Issuer, err)
		return nil, nil, o.fault
	}
	var found struct {
		Keys       string   `json:"jwks_uri"`
		Algorithms []string `json:"id_token_signing_alg_values_supported"`
	}
	if err := provider.Claims(&found); err != nil {
		o.fault = fmt.Errorf("ask the issuer %s: %w", o.o.Issuer, err)
		return nil, nil, o.fault
	}
	o.keys = &keySet{remote: oidc.NewRemoteKeySet(ctx, found.Keys)}
	o.verifier = oidc.NewVerifier(o.o.Issuer, o.keys, &oidc.Config{
		ClientID: o.o.Audience, Now: o.o.Now, SupportedSigningAlgs: asymmetric(found.Algorithms),
	})
	return o.verifier, o.keys, nil
}

// asymmetric leaves of an issuer's algorithms those that need a private key to sign.
func asymmetric(offered []string) (good []string) {
	for _, a := range offered {
		switch a {
		case oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.EdDSA:
			good = append(good, a)
		}
	}
	return good
}

// keySet tells keys that could not be fetched from a signature that is wrong, which
// the verifier's error does not.
type keySet struct{ remote oidc.KeySet }

type noteKey struct{}

func (k *keySet) noting(ctx context.Context, note *error) context.Context {
	return context.WithValue(ctx, noteKey{}, note)
}

// VerifySignature implements oidc.KeySet.
func (k *keySet) VerifySignature(ctx context.Context, jwt string) ([]byte, error) {
	payload, err := k.remote.VerifySignature(ctx, jwt)
	// The remote key set wraps an error only when it could not fetch.
	if cause := errors.Unwrap(err); cause != nil {
		if note, ok := ctx.Value(noteKey{}).(*error); ok {
			*note = cause
		}
	}
	return payload, err
}

// principal is what the claims of a valid token are worth.
func (o *OIDC) principal(token *oidc.IDToken) (*Principal, error) {
	var claims map[string]any
	if err := token.Claims(&claims); err != nil {
		return nil, &TokenError{Reason: "the token's claims cannot be read"}
	}
	name, _ := claims[o.o.UsernameClaim].(string)
	if name == "" {
		return nil, &TokenError{Reason: fmt.Sprintf("the token has no claim %q", o.o.UsernameClaim)}
	}
	if verified, told := claims["email_verified"].(bool); told && !verified && o.usesEmail() {
		return nil, &TokenError{Reason: "the token's email address is not verified by its issuer"}
	}
	p := &Principal{Name: name, Source: SourceOIDC}
	for _, b := range o.o.Bindings {
		if holds(claims[b.Claim], b.Value) {
			p.Grants = append(p.Grants, b.Grant)
		}
	}
	return p, nil
}

// usesEmail reports whether anything depends on who has an email address.
func (o *OIDC) usesEmail() bool {
	return o.o.UsernameClaim == "email" || slices.ContainsFunc(o.o.Bindings, func(b Binding) bool { return b.Claim == "email" })
}

// holds reports whether a claim is a value or a list that has it.
func holds(claim any, value string) bool {
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
