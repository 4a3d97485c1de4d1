package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFlagsOfEachKubeadmCommand(t *testing.T) {
	old := Upgrade{KubeadmFlags: []string{
		"--allow-release-candidate-upgrades", "--ignore-preflight-errors=SystemVerification", "-y", "--force=true", "--feature-gates", "A=true,B=false", "--patches", "/etc/patches",
	}}
	require.Equal(t, old.KubeadmFlags, old.ApplyFlags())
	require.Equal(t, []string{"--ignore-preflight-errors=SystemVerification", "--patches", "/etc/patches"}, old.NodeFlags())

	each := Upgrade{KubeadmFlags: []string{"--v=2"}, KubeadmApplyFlags: []string{"--config=/etc/upgrade.yaml"}, KubeadmNodeFlags: []string{"--skip-phases=addon"}}
	require.Equal(t, []string{"--v=2", "--config=/etc/upgrade.yaml"}, each.ApplyFlags())
	require.Equal(t, []string{"--v=2", "--skip-phases=addon"}, each.NodeFlags())
	require.Empty(t, new(Upgrade).NodeFlags())
}
