package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Role is what a caller may do. Each may do what those before it may.
type Role string

// Roles.
const (
	Viewer   Role = "viewer"   // reads
	Operator Role = "operator" // also starts and steers operations
	Admin    Role = "admin"    // also takes a server out of service
)

// Roles lists the roles, the least first.
func Roles() []Role { return []Role{Viewer, Operator, Admin} }

// covers reports whether r includes what least asks for; nobody (the zero role) is
// covered by everybody.
func (r Role) covers(least Role) bool {
	return slices.Index(Roles(), r) >= slices.Index(Roles(), least)
}

// AllClusters in a grant stands for every cluster, also those to come.
const AllClusters = "*"

// Grant is a role on some clusters.
type Grant struct {
	Role     Role
	Clusters []string // names, or AllClusters
}

func (g Grant) everywhere() bool { return slices.Contains(g.Clusters, AllClusters) }

// Principal is who a caller has proved to be.
type Principal struct {
	Name   string // as the tokens file, or the username claim, has it
	Source string // SourceToken or SourceOIDC: the same name may be in both
	Grants []Grant
}

// Where a principal comes from.
const (
	SourceToken = "token"
	SourceOIDC  = "oidc"
)

// String names the principal in logs, and its requests are counted by it.
func (p *Principal) String() string { return p.Source + ":" + p.Name }

// May reports whether the principal has a role on a cluster.
func (p *Principal) May(least Role, cluster string) bool {
	return slices.ContainsFunc(p.Grants, func(g Grant) bool {
		return g.Role.covers(least) && (g.everywhere() || slices.Contains(g.Clusters, cluster))
	})
}

// has reports whether the principal has a role on any cluster.
func (p *Principal) has(least Role) bool {
	return slices.ContainsFunc(p.Grants, func(g Grant) bool { return g.Role.covers(least) && len(g.Clusters) > 0 })
}

// hasEverywhere reports whether the principal has a role on all clusters, as it
// takes for what concerns the whole server.
func (p *Principal) hasEverywhere(least Role) bool {
	return slices.ContainsFunc(p.Grants, func(g Grant) bool { return g.Role.covers(least) && g.everywhere() })
}

// clusters are those that the principal may look at; all is true when that is every one.
func (p *Principal) clusters() (names []string, all bool) {
	for _, g := range p.Grants {
		if !g.Role.covers(Viewer) {
			continue
		}
		if g.everywhere() {
			return nil, true
		}
		names = append(names, g.Clusters...)
	}
	slices.Sort(names)
	return slices.Compact(names), false
}

// Authenticator finds out who sends a token.
type Authenticator interface {
	// Authenticate is the principal that a token stands for. A *TokenError says why a
	// token is not valid, and is told to its sender; errNotMine that another
	// authenticator may know it. Any other error says that it cannot be found out now.
	Authenticate(ctx context.Context, token string) (*Principal, error)
}

// TokenError is why a token is not accepted, in words that give nothing away.
type TokenError struct {
	Reason string
	kind   string // the error of the challenge; "" = there was no token
}

// Errors of a challenge (RFC 6750, section 3.1).
const (
	invalidRequest = "invalid_request"
	invalidToken   = "invalid_token"
)

func (e *TokenError) Error() string { return e.Reason }

// errNotMine is a token of a kind that an authenticator does not know.
var errNotMine = errors.New("not a token of this kind")

// Authenticators asks one after the other.
type Authenticators []Authenticator

// Authenticate implements Authenticator.
func (a Authenticators) Authenticate(ctx context.Context, token string) (*Principal, error) {
	for _, one := range a {
		p, err := one.Authenticate(ctx, token)
		if !errors.Is(err, errNotMine) {
			return p, err
		}
	}
	return nil, errNotMine
}

// maxToken bounds what is looked at as a token, in bytes; those of OIDC with many
// groups have some thousands.
const maxToken = 16 << 10

// Identify finds out who sends a request with those Authorization headers. A
// *TokenError says what is wrong with them, in words for the sender; any other error,
// that it cannot be found out now.
func Identify(ctx context.Context, headers []string, by Authenticator) (*Principal, error) {
	switch {
	case len(headers) == 0:
		return nil, &TokenError{Reason: "send a token: Authorization: Bearer …"}
	case len(headers) > 1:
		return nil, &TokenError{kind: invalidRequest, Reason: "there is more than one Authorization header"}
	}
	scheme, token, _ := strings.Cut(headers[0], " ")
	token = strings.TrimSpace(token)
	switch {
	case !strings.EqualFold(scheme, "Bearer") || token == "":
		return nil, &TokenError{kind: invalidRequest, Reason: "the Authorization header must be: Bearer, a space, and the token"}
	case len(token) > maxToken:
		return nil, &TokenError{kind: invalidToken, Reason: fmt.Sprintf("the token is longer than %d bytes", maxToken)}
	}
	p, err := by.Authenticate(ctx, token)
	var bad *TokenError
	switch {
	case errors.Is(err, errNotMine):
		return nil, &TokenError{kind: invalidToken, Reason: "the token is not known here"}
	case errors.As(err, &bad):
		return nil, &TokenError{kind: invalidToken, Reason: bad.Reason}
	case err != nil:
		return nil, fmt.Errorf("whether the token is valid cannot be found out now: %w", err)
	}
	return p, nil
}

// authenticate finds out who sent a request.
func authenticate(r *http.Request, by Authenticator) (*Principal, error) {
	p, err := Identify(r.Context(), r.Header.Values("Authorization"), by)
	var bad *TokenError
	switch {
	case errors.As(err, &bad):
		return nil, unauthenticated(bad)
	case err != nil && r.Context().Err() == nil:
		return nil, fail(http.StatusServiceUnavailable, CodeIssuerAway, "%v", err).after(retryLater)
	}
	return p, err
}

// unauthenticated is a 401.
func unauthenticated(bad *TokenError) *failure {
	f := fail(http.StatusUnauthorized, CodeUnauthenticated, "%s", bad.Reason)
	f.challenge = `Bearer realm="ebb"`
	if bad.kind != "" {
		f.challenge += fmt.Sprintf(`, error=%q`, bad.kind)
	}
	return f
}

// recheck is how long what was read from a file is used before the file is looked
// at again. It is looked at when it is needed, not by a watcher, so that a token
// that was taken out is refused on a cordoned server too.
const recheck = time.Second
