// Package auth authenticates the callers of the gateway, by bearer tokens of a file
// or of an OpenID Connect issuer, and has their roles on clusters.
package auth

import (
	"slices"
)

// Role is what a principal may do. Each role includes those before it.
type Role string

// Roles.
const (
	Viewer   Role = "viewer"   // reads
	Operator Role = "operator" // also starts and steers operations
	Admin    Role = "admin"    // also takes a server out of service
)

// Roles returns the roles, the lowest first.
func Roles() []Role { return []Role{Viewer, Operator, Admin} }

// includes reports whether r is at least the given role. The zero Role is included in
// every other.
func (r Role) includes(least Role) bool {
	return slices.Index(Roles(), r) >= slices.Index(Roles(), least)
}

// AllClusters in a Grant stands for all clusters, also those added later.
const AllClusters = "*"

// Grant is a role on clusters.
type Grant struct {
	Role     Role
	Clusters []string // names, or AllClusters
}

func (g Grant) onAllClusters() bool { return slices.Contains(g.Clusters, AllClusters) }

// Principal is an authenticated caller.
type Principal struct {
	Name   string // from the tokens file or the username claim
	Source string // SourceToken or SourceOIDC; a name may be in both
	Grants []Grant
}

// Sources of principals.
const (
	SourceToken = "token"
	SourceOIDC  = "oidc"
)

// String returns an identifier for logs and rate limits.
func (p *Principal) String() string { return p.Source + ":" + p.Name }

// May reports whether the principal has at least a role on a cluster.
func (p *Principal) May(least Role, cluster string) bool {
	return slices.ContainsFunc(p.Grants, func(g Grant) bool {
		return g.Role.includes(least) && (g.onAllClusters() || slices.Contains(g.Clusters, cluster))
	})
}

// HasOnAnyCluster reports whether the principal has at least a role on any cluster.
func (p *Principal) HasOnAnyCluster(least Role) bool {
	return slices.ContainsFunc(p.Grants, func(g Grant) bool { return g.Role.includes(least) && len(g.Clusters) > 0 })
}

// HasOnAllClusters reports whether the principal has at least a role on all clusters,
// which is required for the gateway itself.
func (p *Principal) HasOnAllClusters(least Role) bool {
	return slices.ContainsFunc(p.Grants, func(g Grant) bool { return g.Role.includes(least) && g.onAllClusters() })
}

// VisibleClusters returns the clusters that the principal may view, sorted; or all =
// true and no names if these are all clusters.
func (p *Principal) VisibleClusters() (names []string, all bool) {
	for _, g := range p.Grants {
		if !g.Role.includes(Viewer) {
			continue
		}
		if g.onAllClusters() {
			return nil, true
		}
		names = append(names, g.Clusters...)
	}
	slices.Sort(names)
	return slices.Compact(names), false
}
