package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Addresses in the lab. Machine number n (from 1) is 10.88.0.(10+n) and its pods
// are in 10.244.n.0/24.
const (
	Gateway       = "10.88.0.1" // the switch itself: packages, images, and whoever operates the cluster
	podCIDR       = "10.244.0.0/16"
	serviceSubnet = "10.96.0.0/16"
	namespaces    = "/run/netns/"
	switchNetns   = prefix + "-switch"
)

// SwitchNamespace is the file of the network namespace that reaches every
// machine. Nothing of the lab is in the host's own.
const SwitchNamespace = namespaces + switchNetns

func machineAddress(number int) string { return fmt.Sprintf("10.88.0.%d", 10+number) }

func podSubnet(number int) string { return fmt.Sprintf("10.244.%d.0/24", number) }

// ip runs one command of iproute2 per line.
func ip(ctx context.Context, lines ...string) error {
	for _, line := range lines {
		if _, err := command(ctx, "ip", strings.Fields(line)...); err != nil {
			return err
		}
	}
	return nil
}

// createSwitch makes the namespace that every machine is connected to.
func createSwitch(ctx context.Context) error {
	return ip(ctx,
		"netns add "+switchNetns,
		"-n "+switchNetns+" link set lo up",
		"-n "+switchNetns+" link add br0 type bridge",
		"-n "+switchNetns+" address add "+Gateway+"/24 dev br0",
		"-n "+switchNetns+" link set br0 up",
		"netns exec "+switchNetns+" sysctl -qw net.bridge.bridge-nf-call-iptables=0",
	)
}

func (m *Machine) netns() string { return prefix + "-" + m.Name }

// switchPort returns the machine's port of the switch.
func (m *Machine) switchPort() string { return "port-" + m.Name }

// connect gives a machine a fresh network namespace, connected to the switch,
// with routes to the pods of all machines there may be.
func (m *Machine) connect(ctx context.Context) error {
	ns, number := m.netns(), m.number
	lines := []string{
		"netns add " + ns,
		"link add " + m.switchPort() + " netns " + switchNetns + " type veth peer name eth0 netns " + ns,
		"-n " + switchNetns + " link set " + m.switchPort() + " master br0 up",
		"-n " + ns + " link set lo up",
		"-n " + ns + " address add " + m.Address() + "/24 dev eth0",
		"-n " + ns + " link set eth0 up",
		"-n " + ns + " route add default via " + Gateway,
		"netns exec " + ns + " sysctl -qw net.ipv4.ip_forward=1",
	}
	for other := 1; other <= maxMachines; other++ {
		if other != number {
			lines = append(lines, "-n "+ns+" route add "+podSubnet(other)+" via "+machineAddress(other))
		}
	}
	return ip(ctx, lines...)
}

// disconnect removes a machine's network; there may be none.
func (m *Machine) disconnect(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(namespaces, m.netns())); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	// The namespace lives on for as long as something is in it, its port must not.
	// A lab that was killed may have left one without the other.
	var err error
	if ip(ctx, "-n "+switchNetns+" link show "+m.switchPort()) == nil {
		err = ip(ctx, "-n "+switchNetns+" link delete "+m.switchPort())
	}
	return errors.Join(err, ip(ctx, "netns delete "+m.netns()))
}

// LinkDown sets the machine's port of the switch down: nothing goes through until Mend.
func (m *Machine) LinkDown(ctx context.Context) error {
	return ip(ctx, "-n "+switchNetns+" link set "+m.switchPort()+" down")
}

// LinkUp takes a Cut back.
func (m *Machine) LinkUp(ctx context.Context) error {
	return ip(ctx, "-n "+switchNetns+" link set "+m.switchPort()+" up")
}
