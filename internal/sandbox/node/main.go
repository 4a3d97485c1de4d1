// Command sandbox-node is every program of a sandbox node, by the name that it is
// called with: kubeadm, apt-get and so on are links to it. `sandbox-node infra DIR`
// is the infrastructure command of the sandbox in DIR.
package main

import (
	"os"
	"path/filepath"

	"ebb/internal/sandbox/nodetools"
)

func main() {
	name, args := filepath.Base(os.Args[0]), os.Args[1:]
	if len(args) == 2 && args[0] == "infra" {
		os.Exit(nodetools.Infra(args[1]))
	}
	os.Exit(nodetools.Main(name, args))
}
