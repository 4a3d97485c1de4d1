//go:build tools

// Package etcd pins the etcd server that the sandbox runs.
package etcd

import _ "go.etcd.io/etcd/server/v3"
