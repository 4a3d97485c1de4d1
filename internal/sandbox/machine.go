package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb/internal/sandbox/nodefs"
)

// markerPause is how often the sandbox looks for machines that the
// infrastructure command, another process, has destroyed.
const markerPause = 100 * time.Millisecond

// Machine is the machine of a node, with what can go wrong on it. What is set
// here lasts until it is set back.
type Machine struct {
	name      string
	machineID string // as registered
	info      nodefs.Info
	dir       nodefs.Dir
	ssh       *sshServer
	plane     *controlPlane

	mu   sync.Mutex // over the faults file
	gone bool       // its destruction was seen; Sandbox.markers guards it
}

// Name is the name of the machine's node.
func (m *Machine) Name() string { return m.name }

// MachineID is the one that the node was registered with (32 hex digits).
func (m *Machine) MachineID() string { return m.machineID }

// Home is the directory on this host in which the machine's SSH sessions start.
func (m *Machine) Home() string { return string(m.dir) }

func (m *Machine) change(edit func(*nodefs.Faults)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	faults, err := m.dir.Faults()
	if err == nil {
		edit(&faults)
		err = m.dir.WriteFaults(faults)
	}
	if err != nil {
		return fmt.Errorf("faults of machine %s: %w", m.name, err)
	}
	return nil
}

// FailScript makes upgrades on this machine fail: with 75 the package mirror is
// out of reach, so that the shipped script asks for a retry; any other code is
// the exit code of kubeadm upgrade.
func (m *Machine) FailScript(exit int) error {
	return m.change(func(f *nodefs.Faults) { f.Exit = exit })
}

// HangScript makes kubeadm upgrade on this machine not end.
func (m *Machine) HangScript() error { return m.change(func(f *nodefs.Faults) { f.Hang = true }) }

// SlowScript makes kubeadm upgrade on this machine take that much longer.
func (m *Machine) SlowScript(by time.Duration) error {
	return m.change(func(f *nodefs.Faults) { f.Slow = by })
}

// HealScript takes FailScript, HangScript and SlowScript back; what hangs goes on.
func (m *Machine) HealScript() error {
	return m.change(func(f *nodefs.Faults) { f.Exit, f.Hang, f.Slow = 0, false, 0 })
}

// SetDiskFull makes df on this machine report next to no space, or plenty.
func (m *Machine) SetDiskFull(full bool) error {
	return m.change(func(f *nodefs.Faults) { f.DiskFull = full })
}

// SetSudoPassword makes sudo on this machine ask for a password, or not.
func (m *Machine) SetSudoPassword(asks bool) error {
	return m.change(func(f *nodefs.Faults) { f.SudoPassword = asks })
}

// SetMachineID changes /etc/machine-id; the cluster keeps what was registered.
func (m *Machine) SetMachineID(id string) error {
	if err := m.dir.WriteMachineID(id); err != nil {
		return fmt.Errorf("machine ID of %s: %w", m.name, err)
	}
	return nil
}

// RotateHostKey gives the SSH server a new host key, which no known_hosts file
// holds, and cuts its connections.
func (m *Machine) RotateHostKey() error {
	if err := m.ssh.newHostKey(); err != nil {
		return fmt.Errorf("host key of %s: %w", m.name, err)
	}
	m.ssh.drop()
	return nil
}

// DropConnections cuts the SSH connections; new ones are accepted.
func (m *Machine) DropConnections() { m.ssh.drop() }

// SetReachable closes or opens the SSH server; the kubelet is not touched. The
// error means that another program has taken the port meanwhile.
func (m *Machine) SetReachable(reachable bool) error {
	if !reachable {
		m.ssh.close()
		return nil
	}
	if err := m.ssh.open(context.Background()); err != nil {
		return fmt.Errorf("machine %s: %w", m.name, err)
	}
	return nil
}

// SetPower turns the machine off, as when its plug is pulled, or on again. Off:
// no SSH, what ran on it is dead, the infrastructure says stopped, its pods are
// neither started nor stopped, and the node's Ready is Unknown (at once, not
// after the 40 s that the node controller would take).
func (m *Machine) SetPower(ctx context.Context, on bool) error {
	var err error
	if on {
		err = errors.Join(nodefs.Unmark(m.dir.Stopped()), m.ssh.open(ctx))
	} else {
		err = nodefs.Mark(m.dir.Stopped())
		m.ssh.close()
		killUnder(m.dir.Bin())
	}
	if err == nil {
		err = m.setKubelet(ctx, on)
	}
	if err != nil {
		return fmt.Errorf("power of machine %s: %w", m.name, err)
	}
	return nil
}

// setKubelet starts or kills the simulated kubelet. A node that is not in the cluster has none.
func (m *Machine) setKubelet(ctx context.Context, on bool) error {
	var value any // null removes the label
	if on {
		value = "running"
	}
	err := m.patchNode(ctx, map[string]any{"metadata": map[string]any{"labels": map[string]any{kubeletLabel: value}}})
	if err == nil && !on {
		err = m.patchNode(ctx, map[string]any{"status": map[string]any{"conditions": []core.NodeCondition{{
			Type: core.NodeReady, Status: core.ConditionUnknown, Reason: "NodeStatusUnknown", Message: "Kubelet stopped posting node status.",
			LastHeartbeatTime: meta.Now(), LastTransitionTime: meta.Now(),
		}}}}, "status")
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (m *Machine) patchNode(ctx context.Context, patch any, subresources ...string) error {
	data, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	_, err = m.plane.client.CoreV1().Nodes().Patch(ctx, m.name, types.StrategicMergePatchType, data, meta.PatchOptions{}, subresources...)
	return err
}

// Commands are the commands that ran on the machine, oldest first, such as
// "kubeadm upgrade apply v1.37.2 -y"; those that only read little things
// (sudo, cat, df, dpkg-query) are not listed.
func (m *Machine) Commands() []string {
	data, err := os.ReadFile(m.dir.Journal())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.ssh.log.Error("sandbox: the journal of a machine cannot be read", zap.Error(err))
	}
	var commands []string
	for line := range strings.Lines(string(data)) {
		if _, command, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			commands = append(commands, command)
		}
	}
	return commands
}

// Destroyed says whether the infrastructure has destroyed the machine.
func (m *Machine) Destroyed() bool { return nodefs.Marked(m.dir.Destroyed()) }

// watchMachines takes destroyed machines off the net.
func (s *Sandbox) watchMachines() {
	ticker := time.NewTicker(markerPause)
	defer ticker.Stop()
	for {
		select {
		case <-s.quit:
			return
		case <-ticker.C:
			s.bury()
		}
	}
}

// bury does what the destruction of machines leads to, once for each.
func (s *Sandbox) bury() {
	s.markers.Lock()
	defer s.markers.Unlock()
	for _, m := range s.machines {
		if m.gone || !m.Destroyed() {
			continue
		}
		m.gone = true
		m.ssh.close()
		killUnder(m.dir.Bin())
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		if err := m.setKubelet(ctx, false); err != nil {
			s.opts.Log.Warn("sandbox: kubelet of a destroyed machine", zap.String("node", m.name), zap.Error(err))
		}
		cancel()
		s.opts.Log.Info("sandbox: machine destroyed", zap.String("node", m.name))
	}
}
