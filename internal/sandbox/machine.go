package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb/internal/sandbox/nodedir"
)

// destroyedInterval is how often the sandbox looks for machines that the
// infrastructure command, another process, has destroyed.
const destroyedInterval = 100 * time.Millisecond

// Machine is the machine of a node, with what can go wrong on it. What is set
// here lasts until it is set back.
type Machine struct {
	name      string
	machineID string // as registered
	info      nodedir.Info
	dir       nodedir.Dir
	ssh       *sshServer
	plane     *controlPlane
	api       *front // of a control plane: where its own API server answers

	mu       sync.Mutex // over the faults file
	tornDown bool       // its destruction was followed up; Sandbox.teardown guards it
}

// Name returns the name of the machine's node.
func (m *Machine) Name() string { return m.name }

// MachineID returns the one that the node was registered with (32 hex digits).
func (m *Machine) MachineID() string { return m.machineID }

// Home returns the directory on this host in which the machine's SSH sessions start.
func (m *Machine) Home() string { return string(m.dir) }

// editFaults changes what goes wrong on the machine.
func (m *Machine) editFaults(edit func(*nodedir.Faults)) error {
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

// FailScript makes kubeadm upgrade on this machine end with an exit code.
func (m *Machine) FailScript(exit int) error {
	return m.editFaults(func(f *nodedir.Faults) { f.Exit = exit })
}

// HangScript makes kubeadm upgrade on this machine not end.
func (m *Machine) HangScript() error { return m.editFaults(func(f *nodedir.Faults) { f.Hang = true }) }

// SlowScript makes kubeadm upgrade on this machine take that much longer.
func (m *Machine) SlowScript(by time.Duration) error {
	return m.editFaults(func(f *nodedir.Faults) { f.Slow = by })
}

// HealScript takes FailScript, HangScript and SlowScript back; what hangs goes on.
func (m *Machine) HealScript() error {
	return m.editFaults(func(f *nodedir.Faults) { f.Exit, f.Hang, f.Slow = 0, false, 0 })
}

// KillKubelet makes the kubelet of this machine end with a line in its log whenever it is
// started; "" lets it live from its next start on.
func (m *Machine) KillKubelet(line string) error {
	return m.editFaults(func(f *nodedir.Faults) { f.KubeletDies = line })
}

// SetAPIServer has this control plane's own API server answer, or refuse connections. The
// one in the kubeconfig, behind which they all are, is not touched.
func (m *Machine) SetAPIServer(ctx context.Context, up bool) error {
	if up {
		return m.api.open(ctx)
	}
	m.api.close()
	return nil
}

// APIServerAsked returns how many connections this control plane's own API server has had.
func (m *Machine) APIServerAsked() int { return int(m.api.asked.Load()) }

// SetDiskFull makes df on this machine report next to no space, or plenty.
func (m *Machine) SetDiskFull(full bool) error {
	return m.editFaults(func(f *nodedir.Faults) { f.DiskFull = full })
}

// SetKeyExpired makes apt-get on this machine refuse the repositories' key, or not.
func (m *Machine) SetKeyExpired(expired bool) error {
	return m.editFaults(func(f *nodedir.Faults) { f.KeyExpired = expired })
}

// SetHeldBack holds what the next kubelet depends on at an older version, or not.
func (m *Machine) SetHeldBack(held bool) error {
	return m.editFaults(func(f *nodedir.Faults) { f.HeldBack = held })
}

// SetSudoPassword makes sudo on this machine ask for a password, or not.
func (m *Machine) SetSudoPassword(asks bool) error {
	return m.editFaults(func(f *nodedir.Faults) { f.SudoPassword = asks })
}

// SetMachineID changes /etc/machine-id; the cluster keeps what was registered.
func (m *Machine) SetMachineID(id string) error {
	if err := m.dir.WriteMachineID(id); err != nil {
		return fmt.Errorf("machine ID of %s: %w", m.name, err)
	}
	return nil
}

// ShareMachineID gives this machine and its node the machine ID of another, as copies of
// one disk image have it; nil gives back its own.
func (m *Machine) ShareMachineID(ctx context.Context, other *Machine) error {
	id := m.machineID
	if other != nil {
		id = other.machineID
	}
	if err := m.SetMachineID(id); err != nil {
		return err
	}
	if err := m.patchNode(ctx, map[string]any{"status": map[string]any{"nodeInfo": map[string]any{"machineID": id}}}, "status"); err != nil {
		return fmt.Errorf("machine ID of node %s: %w", m.name, err)
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
		err = errors.Join(nodedir.Unmark(m.dir.Stopped()), m.ssh.open(ctx))
	} else {
		err = nodedir.Mark(m.dir.Stopped())
		m.ssh.close()
		killProcessesOf(m.dir.Bin())
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

// Commands returns the commands that ran on the machine, oldest first, such as
// "kubeadm upgrade apply v1.37.2 -y"; those that only read little things
// (sudo, cat, df, dpkg-query) are not listed.
func (m *Machine) Commands() []string {
	commands, err := m.dir.Commands()
	if err != nil {
		m.ssh.log.Error("sandbox: the journal of a machine cannot be read", zap.Error(err))
	}
	return commands
}

// Destroyed reports whether the infrastructure has destroyed the machine.
func (m *Machine) Destroyed() bool { return nodedir.Marked(m.dir.Destroyed()) }

// tearDownDestroyed takes machines that were destroyed off the net, once for each.
func (s *Sandbox) tearDownDestroyed() {
	s.teardown.Lock()
	defer s.teardown.Unlock()
	for _, m := range s.machines {
		if m.tornDown || !m.Destroyed() {
			continue
		}
		m.tornDown = true
		m.ssh.close()
		killProcessesOf(m.dir.Bin())
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		if err := m.setKubelet(ctx, false); err != nil {
			s.opts.Log.Warn("sandbox: kubelet of a destroyed machine", zap.String("node", m.name), zap.Error(err))
		}
		cancel()
		s.opts.Log.Info("sandbox: machine destroyed", zap.String("node", m.name))
	}
}
