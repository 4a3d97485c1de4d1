// Command sandbox-node is every program of a sandbox node, by the name that it is
// called with: kubeadm, apt-get and so on are links to it, and `sandbox-node tool NAME`
// is the same. `sandbox-node infra DIR` is the infrastructure command of the sandbox in
// DIR.
package main

import (
	"os"

	"ebb/internal/sandbox/nodetools"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == "infra" {
		os.Exit(nodetools.Infra(os.Args[2]))
	}
	os.Exit(nodetools.Main(nodetools.Named(os.Args)))
}
