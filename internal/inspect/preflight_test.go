package inspect

import (
	"testing"

	"github.com/stretchr/testify/require"

	"ebb/internal/policy"
)

func TestJudgeComparesTheMachineWithTheNode(t *testing.T) {
	n := policy.Node{Name: "w1", MachineID: "abc"}
	fit := "sudo: unable to resolve host w1\nmachine-id=abc\nkubeadm=v1.36.3\ndisk-free=9000000\n"
	require.Empty(t, judge(n, fit))
	require.Equal(t, []string{
		`node w1: the address leads to another machine: /etc/machine-id is "xyz", the cluster says "abc"; check its forwarding rule`,
		"node w1: kubeadm is not installed",
		"node w1: 1000 KiB free on /, an upgrade needs 2097152",
	}, judge(n, "machine-id=xyz\nkubeadm=\ndisk-free=1000\n"))
	require.Len(t, judge(n, ""), 3, "a machine that prints nothing is not fit")
}
