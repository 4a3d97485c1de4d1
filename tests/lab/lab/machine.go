package lab

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// machineNames are the machines that a lab may have, in the order of their numbers.
var machineNames = []string{"cp1", "cp2", "w1", "w2"}

const maxMachines = 4

// Machine is a machine of the lab. What there is of it is in files and in the
// kernel, so that any process can look at it.
type Machine struct {
	Name string

	lab    *Lab
	number int // from 1
}

// Machine returns the machine of a name, which may be off or not there at all.
func (l *Lab) Machine(name string) (*Machine, error) {
	for i, known := range machineNames {
		if name == known {
			return &Machine{Name: name, lab: l, number: i + 1}, nil
		}
	}
	return nil, fmt.Errorf("the lab has no machine %q, only %s", name, strings.Join(machineNames, ", "))
}

// Address is its address on the switch.
func (m *Machine) Address() string { return machineAddress(m.number) }

func (m *Machine) path(elements ...string) string {
	return m.lab.Path(append([]string{"machines", m.Name}, elements...)...)
}

// sysctls are those of the host that the kubelet would set: path and what it wants.
var sysctls = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// create gives a machine its disk and what makes it this machine.
func (m *Machine) create(ctx context.Context) error {
	if err := os.MkdirAll(m.path("root"), 0o750); err != nil {
		return err
	}
	if _, err := command(ctx, "cp", "--sparse=always", m.lab.diskImage(), m.path("disk.img")); err != nil {
		return err
	}
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		return err
	}
	for name, content := range map[string]string{
		"uuid":                               fmt.Sprintf("%x-%x-%x-%x-%x\n", id[:4], id[4:6], id[6:8], id[8:10], id[10:]),
		"seed/etc/hostname":                  m.Name + "\n",
		"seed/etc/machine-id":                hex.EncodeToString(id[:]) + "\n",
		"seed/etc/cni/net.d/10-lab.conflist": fmt.Sprintf(cniConfig, podSubnet(m.number)),
		"init.sh":                            machineFile("init.sh"),
		"boot.sh":                            machineFile("boot.sh"),
	} {
		if err := write(m.path(name), content, 0o644); err != nil {
			return err
		}
	}
	for name, value := range sysctls {
		if err := write(m.path("sysctl", name), value+"\n", 0o644); err != nil {
			return err
		}
	}
	return m.createKeys()
}

// cniConfig is the network of a machine's pods: a bridge, and routes to those of the others.
const cniConfig = `{"cniVersion": "1.0.0", "name": "lab", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}
]}
`

// start switches a machine on. bundle is shown as /opt/ebb/bundle; "" = nothing is.
func (m *Machine) start(ctx context.Context, bundle string) error {
	if err := errors.Join(m.disconnect(ctx), m.connect(ctx)); err != nil {
		return err
	}
	groups, err := createCgroups(m.Name)
	if err != nil {
		return err
	}
	names, err := cgroupHierarchies()
	if err != nil {
		return err
	}
	console, err := os.OpenFile(m.path("console.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = console.Close() }()                                                                          // the machine has its own
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "sh", append([]string{m.path("boot.sh")}, groups...)...) // #nosec G204 -- our own script
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "LAB_NETNS=" + m.netns(), "LAB_INIT=" + m.path("init.sh"), "LAB_NAME=" + m.Name, "LAB_DISK=" + m.path("disk.img"),
		"LAB_STATE=" + m.path(), "LAB_HIERARCHIES=" + strings.Join(names, " "), "LAB_BUNDLE=" + bundle,
	}
	cmd.Stdout, cmd.Stderr = console, console
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it outlives the process that switched it on
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // how it ends is of no interest: Running looks at the machine itself
	return m.findInit(ctx, cmd.Process.Pid)
}

// findInit waits for process 1 of the machine, the only child of unshare, and
// writes down which it is.
func (m *Machine) findInit(ctx context.Context, parent int) error {
	waiting, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return pollUntil(waiting, "machine "+m.Name+" does not start, see "+m.path("console.log"), func() error {
		child, err := read(fmt.Sprintf("/proc/%d/task/%d/children", parent, parent))
		if err != nil || child == "" {
			return fmt.Errorf("process %d has no child (%w)", parent, err)
		}
		name, err := read("/proc/" + child + "/comm")
		if err != nil || name != "systemd" {
			return fmt.Errorf("process 1 of it is %q (%w)", name, err)
		}
		return write(m.path("pid"), child, 0o600)
	})
}

// pid returns process 1 of the machine as the host sees it; 0 = it is off.
func (m *Machine) pid() int {
	text, err := read(m.path("pid"))
	if err != nil {
		return 0
	}
	groups, err := read("/proc/" + text + "/cgroup")
	if err != nil || !strings.Contains(groups, ":/"+prefix+"/"+m.Name) {
		return 0 // it has ended; the number may be another's by now
	}
	pid, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	return pid
}

// Running reports whether the machine is on.
func (m *Machine) Running() bool { return m.pid() != 0 }

// Exists reports whether there is such a machine, on or off.
func (m *Machine) Exists() bool {
	_, err := os.Stat(m.path("disk.img"))
	return err == nil
}

// Run runs a shell script on the machine as root, without SSH, and returns what it printed.
func (m *Machine) Run(ctx context.Context, script string) (string, error) {
	pid := m.pid()
	if pid == 0 {
		return "", fmt.Errorf("machine %s is off", m.Name)
	}
	out, err := command(ctx, "nsenter", "--target", strconv.Itoa(pid), "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup",
		"env", "-i", "HOME=/root", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "sh", "-euc", script)
	if err != nil {
		err = fmt.Errorf("on machine %s: %w", m.Name, err)
	}
	return out, err
}

// Write writes a file on the machine.
func (m *Machine) Write(ctx context.Context, path, content string) error {
	_, err := m.Run(ctx, fmt.Sprintf("mkdir -p %q\ncat >%q <<'end of file'\n%send of file\n", filepath.Dir(path), path, content))
	return err
}

// sigPowerOff is SIGRTMIN+4, by which systemd is told to power off.
const sigPowerOff = syscall.Signal(34 + 4)

// Stop switches a machine off, in an orderly way for as long as that takes less
// than half a minute. A machine that is off is left as it is.
func (m *Machine) Stop(ctx context.Context) error {
	if pid := m.pid(); pid != 0 {
		if err := syscall.Kill(pid, sigPowerOff); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
		if m.waitOff(ctx, 30*time.Second) != nil {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return err
			}
			if err := m.waitOff(ctx, 30*time.Second); err != nil {
				return err
			}
		}
	}
	return m.disconnect(ctx)
}

func (m *Machine) waitOff(ctx context.Context, within time.Duration) error {
	waiting, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return pollUntil(waiting, "machine "+m.Name+" is not off", func() error {
		if pid := m.pid(); pid != 0 {
			return fmt.Errorf("process %d is still there", pid)
		}
		return nil
	})
}

// Destroy removes a machine for good, switched off if need be. It may be repeated.
func (m *Machine) Destroy(ctx context.Context) error {
	if err := m.Stop(ctx); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	// The kernel lets go of the last processes' cgroups a moment after they have ended.
	if err := pollUntil(waiting, "cgroups of "+m.Name, func() error { return removeCgroups(m.Name) }); err != nil {
		return err
	}
	if err := os.RemoveAll(m.path()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
