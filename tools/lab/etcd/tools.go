//go:build tools

// Package etcd pins the etcd of the Kubernetes release that the lab upgrades to.
package etcd

import (
	_ "go.etcd.io/etcd/server/v3"
)
