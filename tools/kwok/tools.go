//go:build tools

// Package kwok pins the simulated kubelets that the sandbox runs.
package kwok

import _ "sigs.k8s.io/kwok/cmd/kwok"
