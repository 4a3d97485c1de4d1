package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUpgradesThatAttachAnISO(t *testing.T) {
	for name, c := range map[string]struct {
		provider, script, iso string
		attaches              bool
		faults                []string
	}{
		"of the version":        {"cloudstack", "cks-iso", "", true, nil},
		"by a name":             {"cloudstack", "cks-iso", "setup-v{version}", true, nil},
		"by a program":          {"exec", "cks-iso", "", true, nil},
		"by hand":               {"none", "cks-iso", "", false, nil},
		"for another script":    {"exec", "/etc/ebb/own.sh", "binaries", true, nil},
		"for a bundle on it":    {"cloudstack", "kubeadm-bundle", "{version}", true, nil},
		"none":                  {"cloudstack", "kubeadm-bundle", "", false, nil},
		"for packages":          {"cloudstack", "", "setup", true, []string{"clusters[0].upgrade.iso: is not used with script kubeadm-apt: use cks-iso, kubeadm-bundle or one of your own"}},
		"nobody attaches it":    {"none", "cks-iso", "setup", false, []string{"clusters[0].upgrade.iso: needs infrastructure.provider cloudstack or exec, which attaches it"}},
		"a word that is not it": {"cloudstack", "cks-iso", "setup-{target}", true, []string{"clusters[0].upgrade.iso: must be a name or an ID, and may hold {version} but no other braces"}},
		"a space too many":      {"cloudstack", "cks-iso", "setup ", true, []string{"clusters[0].upgrade.iso: must not begin or end with a space"}},
	} {
		t.Run(name, func(t *testing.T) {
			var cluster Cluster
			require.Equal(t, c.faults, faultsOf(func(one *Cluster) {
				one.Infrastructure.Provider, one.Upgrade.Script, one.Upgrade.ISO = c.provider, c.script, c.iso
				switch c.provider {
				case "cloudstack":
					one.Infrastructure.Endpoint, one.Infrastructure.CredentialsFile = "https://cloud.example.com/client/api", "/keys"
				case "exec":
					one.Infrastructure.Command = []string{"/etc/ebb/machines"}
				}
				cluster = *one
			}))
			require.Equal(t, c.attaches, cluster.AttachesISO())
		})
	}
}
