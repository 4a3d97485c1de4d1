//go:build tools

// Package lint pins the linters that make check runs.
package lint

import (
	_ "github.com/golangci/golangci-lint/v2/cmd/golangci-lint"
	_ "go.temporal.io/sdk/contrib/tools/workflowcheck"
)
