//go:build tools

// Package sandbox pins the programs of the sandbox. Kubernetes and etcd are also what the
// lab upgrades to, so that they are compiled once. Modules that Ebb uses as well are at
// Ebb's versions, so that these are compiled once too; tests/guards says which are not.
package sandbox

import (
	_ "go.etcd.io/etcd/server/v3"
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-proxy"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubeadm"
	_ "k8s.io/kubernetes/cmd/kubectl"
	_ "k8s.io/kubernetes/cmd/kubelet"
	_ "sigs.k8s.io/kwok/cmd/kwok"
)
