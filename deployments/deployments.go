// Package deployments holds the manifests that an operator applies, so that the
// demo and the tests run with exactly these rights.
package deployments

import _ "embed"

// Namespace is the manifest of the namespace that holds a cluster's Lease.
//
//go:embed namespace.yaml
var Namespace []byte

// RBAC is the manifest of the worker's rights, and of no others.
//
//go:embed rbac.yaml
var RBAC []byte

// GatewayRBAC is the manifest of the gateway's rights, and of no others.
//
//go:embed rbac-gateway.yaml
var GatewayRBAC []byte
