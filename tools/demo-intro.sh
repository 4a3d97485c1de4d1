#!/usr/bin/env bash
# demo-intro.sh: what `make demo` does and how long it takes on this machine.
set -euo pipefail
cd "$(dirname "$0")/.."

echo "demo: a real control plane with simulated kubelets is started on this machine, and four operations
demo: run on it: a scale-down that a budget blocks for a while, one that is rolled back, an upgrade whose
demo: worker is killed, and one that fails on a node and is resumed there. That takes two minutes."

# Measured with empty caches: 14 minutes of CPU for everything that the demo runs.
cpu_minutes=14
cores=$(getconf _NPROCESSORS_ONLN)
if [ ! -e "${BIN:-.bin}/ebb" ]; then
  echo "demo: first, what it runs is compiled: Kubernetes, etcd, the Temporal server and Ebb; with empty caches about
demo: $((cpu_minutes / cores + 1)) minutes on the $cores cores of this machine, once. EBB_SANDBOX_BIN names a folder with etcd, kube-apiserver,
demo: kube-controller-manager, kube-scheduler and kwok if you have them."
fi
