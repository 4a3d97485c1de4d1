package config

import "strings"

// AttachesISO reports whether upgrades of the cluster need an ISO that its infrastructure
// attaches to the machines. With no infrastructure an operator does, before the upgrade.
func (c *Cluster) AttachesISO() bool {
	return c.Infrastructure.hasDrives() && (c.Upgrade.ISO != "" || c.Upgrade.Script == ScriptCKSISO)
}

// hasDrives reports whether the provider can attach ISOs.
func (i *Infrastructure) hasDrives() bool {
	return i.Provider == InfraExec || i.Provider == InfraCloudStack
}

// validateISO validates upgrade.iso.
func (u *Upgrade) validateISO(v validator, i *Infrastructure) {
	switch rest := strings.ReplaceAll(u.ISO, "{version}", ""); {
	case u.ISO == "":
		return
	case strings.TrimSpace(u.ISO) != u.ISO:
		v.errorf("iso", "must not begin or end with a space")
	case strings.ContainsAny(rest, "{}"):
		v.errorf("iso", "must be a name or an ID, and may hold {version} but no other braces")
	}
	if u.Script == "" || u.Script == ScriptKubeadmApt {
		v.errorf("iso", "is not used with script %s: use cks-iso, kubeadm-bundle or one of your own", ScriptKubeadmApt)
	}
	if !i.hasDrives() {
		v.errorf("iso", "needs infrastructure.provider cloudstack or exec, which attaches it")
	}
}
