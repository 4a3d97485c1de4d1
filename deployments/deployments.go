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

// Gateway is the manifest of two gateways in Kubernetes.
//
//go:embed gateway.yaml
var Gateway []byte

// WorkerToken is the manifest of a token of the worker that does not expire.
//
//go:embed token-worker.yaml
var WorkerToken []byte

// GatewayToken is the manifest of a token of the gateway that does not expire.
//
//go:embed token-gateway.yaml
var GatewayToken []byte

// GatewayRBAC is the manifest of the gateway's rights, and of no others.
//
//go:embed rbac-gateway.yaml
var GatewayRBAC []byte

// Agent is the manifest of the tunnel's agents in Kubernetes.
//
//go:embed agent.yaml
var Agent []byte
