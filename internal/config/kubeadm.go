package config

import (
	"slices"
	"strings"
)

// applyOnly are flags of kubeadm upgrade apply that kubeadm upgrade node ends with an error for.
var applyOnly = []string{
	"--allow-experimental-upgrades", "--allow-release-candidate-upgrades", "--feature-gates", "--force", "-f", "--print-config", "--yes", "-y",
}

// ApplyFlags returns the flags of kubeadm upgrade apply.
func (u *Upgrade) ApplyFlags() []string { return slices.Concat(u.KubeadmFlags, u.KubeadmApplyFlags) }

// NodeFlags returns the flags of kubeadm upgrade node. Those of kubeadmFlags that only
// apply knows are not among them.
func (u *Upgrade) NodeFlags() []string {
	var known []string
	dropped := false // with its values, which are words of their own
	for _, word := range u.KubeadmFlags {
		if strings.HasPrefix(word, "-") {
			name, _, _ := strings.Cut(word, "=")
			dropped = slices.Contains(applyOnly, name)
		}
		if !dropped {
			known = append(known, word)
		}
	}
	return slices.Concat(known, u.KubeadmNodeFlags)
}
