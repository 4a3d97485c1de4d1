package auth

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Authenticator finds the principal of a bearer token.
type Authenticator interface {
	// Authenticate returns the principal of a token. The error is a *TokenError if the
	// token is not valid, errNotRecognized if it is of a kind for another
	// Authenticator; any other error means that the token cannot be checked now.
	Authenticate(ctx context.Context, token string) (*Principal, error)
}

// TokenError says why a token is not accepted. Reason is shown to the sender, and
// discloses nothing.
type TokenError struct {
	Reason string
	code   string // error code of the challenge; "" = there was no token
}

// Error codes of a challenge (RFC 6750, section 3.1).
const (
	invalidRequest = "invalid_request"
	invalidToken   = "invalid_token"
)

func (e *TokenError) Error() string { return e.Reason }

// Challenge returns the value of the WWW-Authenticate header of the response.
func (e *TokenError) Challenge() string {
	challenge := `Bearer realm="ebb"`
	if e.code != "" {
		challenge += fmt.Sprintf(`, error=%q`, e.code)
	}
	return challenge
}

// errNotRecognized is returned for a token of a kind that an Authenticator does not
// handle.
var errNotRecognized = errors.New("not a token of this kind")

// Union asks each Authenticator in turn until one recognises the token.
type Union []Authenticator

// Authenticate implements Authenticator.
func (a Union) Authenticate(ctx context.Context, token string) (*Principal, error) {
	for _, one := range a {
		p, err := one.Authenticate(ctx, token)
		if !errors.Is(err, errNotRecognized) {
			return p, err
		}
	}
	return nil, errNotRecognized
}

// maxTokenBytes is the longest token that is checked; OIDC tokens with many groups have
// some thousand bytes.
const maxTokenBytes = 16 << 10

// AuthenticateHeaders returns the principal of a request with these Authorization
// headers. The error is a *TokenError if the request has no valid token; any other
// error means that the token cannot be checked now.
func AuthenticateHeaders(ctx context.Context, headers []string, by Authenticator) (*Principal, error) {
	switch {
	case len(headers) == 0:
		return nil, &TokenError{Reason: "send a token: Authorization: Bearer …"}
	case len(headers) > 1:
		return nil, &TokenError{code: invalidRequest, Reason: "there is more than one Authorization header"}
	}
	scheme, token, _ := strings.Cut(headers[0], " ")
	token = strings.TrimSpace(token)
	switch {
	case !strings.EqualFold(scheme, "Bearer") || token == "":
		return nil, &TokenError{code: invalidRequest, Reason: "the Authorization header must be: Bearer, a space, and the token"}
	case len(token) > maxTokenBytes:
		return nil, &TokenError{code: invalidToken, Reason: fmt.Sprintf("the token is longer than %d bytes", maxTokenBytes)}
	}
	p, err := by.Authenticate(ctx, token)
	var bad *TokenError
	switch {
	case errors.Is(err, errNotRecognized):
		return nil, &TokenError{code: invalidToken, Reason: "the token is not known here"}
	case errors.As(err, &bad):
		return nil, &TokenError{code: invalidToken, Reason: bad.Reason}
	case err != nil:
		return nil, fmt.Errorf("whether the token is valid cannot be found out now: %w", err)
	}
	return p, nil
}
