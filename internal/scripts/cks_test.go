package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/sandbox/nodedir"
	"ebb/internal/sandbox/nodetools"
)

const cks = "cks-iso"

// cksMachine is a control plane at 1.36.3 that is laid out as CKS does, with what is in its
// drive.
type cksMachine struct {
	*machine
	program string // the programs of the sandbox's nodes
	kubectl string // the file that says how kubectl was called
}

// inCluster is what the cluster of a cksMachine runs of the ISO's manifests.
const inCluster = "daemonset.apps/sandbox-network deployment.apps/sandbox-dashboard"

func newCKSMachine(t *testing.T) cksMachine {
	t.Helper()
	m := cksMachine{machine: newMachine(t)}
	var err error
	m.program, err = os.Executable()
	require.NoError(t, err)
	require.NoError(t, nodetools.LayOutCKS(m.node, "1.36.3", m.program))
	m.env["EBB_OPT_DIR"], m.env["EBB_ISO_WAIT"] = m.node.Opt(), "20"
	m.cluster(inCluster)
	return m
}

// cluster sets what the cluster runs of the ISO's manifests, as kubectl get -o name prints it.
func (m *cksMachine) cluster(runs string) {
	m.kubectl = filepath.Join(m.t.TempDir(), "kubectl")
	writeProgram(m.t, m.kubectl, `case " $* " in *" get -f "*) for one in `+runs+`; do case $* in *"${one##*-}.yaml"*) echo "$one" ;; esac; done ;;
*" apply "*) [ "${*##*/}" != "$BROKEN" ] || { echo "error: field is immutable" >&2; exit 1; } ;; esac`)
	info, err := m.node.Info()
	require.NoError(m.t, err)
	info.CKS, info.Kubectl, info.Kubeconfig = true, m.kubectl, "/sandbox/admin.conf"
	require.NoError(m.t, m.node.WriteInfo(info))
}

// insert attaches an ISO of that layout: an image that xorriso has made, or the directory
// where there is no xorriso.
func (m *cksMachine) insert(version string, change func(dir string)) {
	m.t.Helper()
	dir := filepath.Join(m.t.TempDir(), "iso")
	require.NoError(m.t, nodetools.WriteISO(dir, version, m.program))
	if change != nil {
		change(dir)
	}
	if _, err := exec.LookPath("xorriso"); err == nil {
		dir = writeImage(m.t, dir)
	}
	require.NoError(m.t, m.node.WriteDrive(nodedir.Drive{}))
	require.NoError(m.t, m.node.AttachISO(dir, version))
}

// writeImage makes an ISO 9660 image, as CloudStack's own tool does.
func writeImage(t *testing.T, dir string) string {
	t.Helper()
	image := filepath.Join(t.TempDir(), "binaries.iso")
	out, err := exec.CommandContext(t.Context(), "xorriso", "-as", "mkisofs", "-quiet", "-o", image, "-J", "-R", "-l", dir).CombinedOutput()
	require.NoError(t, err, string(out))
	return image
}

// drive is the drive after a run: nothing is mounted.
func (m *cksMachine) drive() nodedir.Drive {
	m.t.Helper()
	drive, err := m.node.Drive()
	require.NoError(m.t, err)
	require.Empty(m.t, drive.Mounted)
	require.NoDirExists(m.t, m.mountPoint())
	return drive
}

func (m *cksMachine) mountPoint() string { return filepath.Join(filepath.Dir(m.runDir), ".iso") }

func (m *cksMachine) onNode(elem ...string) string {
	content, err := os.ReadFile(m.node.Opt(elem...))
	require.NoError(m.t, err)
	return string(content)
}

// withISO puts the calls that mount and unmount the ISO around others.
func (m *cksMachine) withISO(calls ...string) []string {
	all := append([]string{"mount -t iso9660 -o ro /dev/sr0 " + m.mountPoint()}, calls...)
	return append(all, "umount "+m.mountPoint())
}

func TestCKS(t *testing.T) {
	const asAdmin = "kubectl --kubeconfig /etc/kubernetes/admin.conf --request-timeout 30s "
	for role, command := range map[string]string{
		"first-control-plane": "kubeadm upgrade apply v1.37.2 -y --v=2", "control-plane": "kubeadm upgrade node --v=2", "worker": "kubeadm upgrade node --v=2",
	} {
		t.Run(role, func(t *testing.T) {
			m := newCKSMachine(t)
			m.env["EBB_KUBEADM_FLAGS"] = "--v=2"
			m.insert("1.37.2", nil)
			code, out, calls := m.run(cks, "stage", role)
			require.Zero(t, code, out)
			require.Contains(t, out, "waiting for the ISO of 1.37.2", "it appears after a while")
			in := m.mountPoint()
			require.Equal(t, m.withISO("ctr -n k8s.io images import "+in+"/docker/kube-proxy:v1.37.2.tar", "ctr -n k8s.io images import "+in+"/docker/pause:3.11.tar"), calls)
			require.False(t, m.drive().Ejected, "it is needed once more")
			require.Contains(t, m.onNode("bin", "kubeadm"), "1.36.3", "nothing is changed")
			require.NoDirExists(t, m.node.Opt("cni"))

			want := []string{command, "systemctl daemon-reload", "systemctl restart kubelet"}
			if role == "first-control-plane" {
				want = append(want, asAdmin+"get --raw /readyz")
				for _, name := range []string{"network", "dashboard"} {
					want = append(want, asAdmin+"get -f "+in+"/"+name+".yaml --ignore-not-found -o name", asAdmin+"apply -f "+in+"/"+name+".yaml")
				}
			}
			code, out, calls = m.run(cks, "upgrade", role)
			require.Zero(t, code, out)
			require.Equal(t, append(m.withISO(want...), "eject /dev/sr0"), calls)
			require.True(t, m.drive().Ejected)
			for _, name := range []string{"kubeadm", "kubelet", "kubectl"} {
				require.Contains(t, m.onNode("bin", name), "SANDBOX_AS_VERSION=1.37.2")
			}
			for _, file := range [][]string{{"bin", "crictl"}, {"cni", "bin", "bridge"}, {"provider", "provider.yaml"}, {"autoscaler", "autoscaler_tmpl.yaml"}} {
				require.Contains(t, m.onNode(file...), "1.37.2")
			}

			m.insert("1.37.2", nil)
			code, out, calls = m.run(cks, "upgrade", role)
			require.Zero(t, code, out)
			require.Equal(t, append(m.withISO(), "eject /dev/sr0"), calls, "nothing is done twice")
		})
	}
}

// The ISO may be another one, or none, or not whole; whatever it is, it is let go of.
func TestCKSFailures(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: runs a script many times")
	}
	without := func(file string) func(string) {
		return func(dir string) { require.NoError(t, os.Remove(filepath.Join(dir, file))) }
	}
	for name, c := range map[string]struct {
		version string
		change  func(dir string)
		text    string
		ejected bool
	}{
		"no ISO":                    {"", nil, "no ISO of 1.37.2 has appeared within ", false},
		"of a version like it":      {"1.37.20", nil, "; the kubeadm on /dev/sr0 says v1.37.20", false},
		"the machine's config disk": {"1.37.2", without("k8s/kubeadm"), "; /dev/sr0 holds no k8s/kubeadm", false},
		"no kubelet":                {"1.37.2", without("k8s/kubelet"), "/dev/sr0 is not a binaries ISO: k8s/kubelet is missing", true},
		"another kubelet": {"1.37.2", func(dir string) {
			writeProgram(t, filepath.Join(dir, "k8s/kubelet"), "echo Kubernetes v1.37.1")
		}, "k8s/kubelet of the ISO is not 1.37.2: it says Kubernetes v1.37.1", true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newCKSMachine(t)
			m.env["EBB_ISO_WAIT"] = "2"
			if c.version != "" {
				m.insert(c.version, c.change)
			}
			code, out, calls := m.run(cks, "stage", "worker")
			require.Equal(t, 1, code, out)
			require.Contains(t, out, c.text)
			require.Equal(t, c.ejected, m.drive().Ejected)
			require.Equal(t, c.ejected, strings.Contains(strings.Join(calls, "\n"), "eject /dev/sr0"))
		})
	}
}

// A script that fails, or is stopped, leaves nothing mounted and the tray open; one that is
// to be tried again leaves the ISO in the drive.
func TestCKSLetsGoOfTheISO(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: runs a script many times")
	}
	t.Run("kubeadm fails", func(t *testing.T) {
		m := newCKSMachine(t)
		m.set(nodedir.Faults{Exit: 7})
		m.insert("1.37.2", nil)
		code, out, calls := m.run(cks, "upgrade", "first-control-plane")
		require.Equal(t, 1, code)
		require.Contains(t, lastLine(out), "kubeadm upgrade apply v1.37.2 failed with exit code 7")
		require.Equal(t, append(m.withISO("kubeadm upgrade apply v1.37.2 -y"), "eject /dev/sr0"), calls, "it has nothing to do with CoreDNS")
		require.True(t, m.drive().Ejected)
		require.Contains(t, m.onNode("bin", "kubelet"), "1.36.3")
	})
	t.Run("it is stopped", func(t *testing.T) {
		m := newCKSMachine(t)
		m.env["EBB_PHASE"], m.env["EBB_ROLE"] = "upgrade", "worker"
		m.set(nodedir.Faults{Slow: time.Minute})
		m.insert("1.37.2", nil)
		cmd := m.start(cks)
		require.Eventually(t, func() bool { return strings.Contains(strings.Join(m.calls(), "\n"), "kubeadm upgrade node") }, 20*time.Second, 50*time.Millisecond)
		m.stop(cmd)
		require.Equal(t, 143, cmd.ProcessState.ExitCode())
		require.True(t, m.drive().Ejected)
	})
	t.Run("the API server is not ready", func(t *testing.T) {
		m := newCKSMachine(t)
		m.insert("1.37.2", nil)
		writeProgram(t, m.kubectl, `[ "$5$6" != get-f ] || { echo "Unable to connect to the server" >&2; exit 1; }`)
		code, out, _ := m.run(cks, "upgrade", "first-control-plane")
		require.Equal(t, ExitRetry, code, out)
		require.Contains(t, lastLine(out), "try again later: kubectl get: Unable to connect to the server")
		require.False(t, m.drive().Ejected)
		m.cluster(inCluster)
		code, out, calls := m.run(cks, "upgrade", "first-control-plane")
		require.Zero(t, code, out)
		require.NotContains(t, strings.Join(calls, "\n"), "kubeadm upgrade")
		require.True(t, m.drive().Ejected)
	})
	t.Run("an earlier run was killed", func(t *testing.T) {
		m := newCKSMachine(t)
		m.insert("1.37.2", nil)
		drive := m.drive()
		drive.Since, drive.Mounted = time.Time{}, m.mountPoint()
		require.NoError(t, os.Mkdir(m.mountPoint(), 0o755))
		require.NoError(t, m.node.WriteDrive(drive))
		require.NoError(t, os.Mkdir(m.node.Opt("bin", ".ebb-left"), 0o755))
		code, out, calls := m.run(cks, "stage", "worker")
		require.Zero(t, code, out)
		left, err := filepath.Glob(m.node.Opt("bin", ".ebb-*"))
		require.NoError(t, err)
		require.Empty(t, left)
		require.Equal(t, "umount "+m.mountPoint(), calls[0])
		m.drive()
	})
}

// Programs of the same names that are elsewhere on PATH are not the node's.
func TestCKSLeavesOtherProgramsAlone(t *testing.T) {
	m := newCKSMachine(t)
	other := t.TempDir()
	for _, name := range []string{"kubeadm", "kubelet", "kubectl"} {
		writeProgram(t, filepath.Join(other, name), "exit 9")
	}
	m.env["PATH"] = other + ":" + m.env["PATH"]
	m.insert("1.37.2", nil)
	code, out, _ := m.run(cks, "upgrade", "worker")
	require.Zero(t, code, out)
	for _, name := range []string{"kubeadm", "kubelet", "kubectl"} {
		content, err := os.ReadFile(filepath.Join(other, name))
		require.NoError(t, err)
		require.Equal(t, "#!/bin/sh\nexit 9\n", string(content))
		require.Contains(t, m.onNode("bin", name), "1.37.2")
	}
}

// Kubeadm does not know CoreDNS's plugins of CKS, and upgrades without that check.
func TestCKSUpgradesWithPluginsOfCoreDNS(t *testing.T) {
	m := newCKSMachine(t)
	m.set(nodedir.Faults{CoreDNS: true})
	m.env["EBB_KUBEADM_FLAGS"] = "--ignore-preflight-errors=SystemVerification"
	m.insert("1.37.2", nil)
	code, out, calls := m.run(cks, "upgrade", "first-control-plane")
	require.Zero(t, code, out)
	require.Equal(t, []string{
		"kubeadm upgrade apply v1.37.2 -y --ignore-preflight-errors=SystemVerification",
		"kubeadm upgrade apply v1.37.2 -y --ignore-preflight-errors=SystemVerification --ignore-preflight-errors=CoreDNSUnsupportedPlugins",
	}, calls[1:3])
}

func TestCKSManifests(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: runs a script many times")
	}
	applied := func(calls []string) (names []string) {
		for _, call := range calls {
			if strings.Contains(call, " apply -f ") {
				names = append(names, filepath.Base(call))
			}
		}
		return names
	}
	t.Run("the cluster runs another network", func(t *testing.T) {
		m := newCKSMachine(t)
		m.cluster("deployment.apps/sandbox-dashboard")
		m.insert("1.37.2", nil)
		code, out, calls := m.run(cks, "upgrade", "first-control-plane")
		require.Zero(t, code, out)
		require.Contains(t, out, "network.yaml of the ISO is not applied: the cluster runs nothing of it")
		require.Equal(t, []string{"dashboard.yaml"}, applied(calls))
	})
	t.Run("the dashboard cannot be applied", func(t *testing.T) {
		m := newCKSMachine(t)
		m.env["BROKEN"] = "dashboard.yaml"
		m.insert("1.37.2", nil)
		code, out, _ := m.run(cks, "upgrade", "first-control-plane")
		require.Zero(t, code, out)
		require.Contains(t, out, "kubectl could not apply dashboard.yaml of the ISO: it stays as it is")
	})
	t.Run("the network cannot be applied", func(t *testing.T) {
		m := newCKSMachine(t)
		m.env["BROKEN"] = "network.yaml"
		m.insert("1.37.2", nil)
		code, out, _ := m.run(cks, "upgrade", "first-control-plane")
		require.Equal(t, 1, code)
		require.Contains(t, lastLine(out), "kubectl could not apply network.yaml of the ISO")
	})
}

// A real volume: the kernel mounts it, and it is found among the host's own devices.
func TestCKSOfAVolumeThatTheKernelMounts(t *testing.T) {
	if _, err := exec.LookPath("xorriso"); err != nil {
		t.Skip("there is no xorriso on this host")
	}
	m := newCKSMachine(t)
	dir := filepath.Join(t.TempDir(), "iso")
	require.NoError(t, nodetools.WriteISO(dir, "1.37.2", m.program))
	image := writeImage(t, dir)
	device := loopDevice(t, image)
	for _, name := range []string{"blkid", "mount", "umount", "eject"} {
		require.NoError(t, os.Remove(filepath.Join(m.node.Bin(), name)))
	}
	for _, phase := range []string{"stage", "upgrade"} {
		code, out, _ := m.run(cks, phase, "worker")
		require.Zero(t, code, out)
		require.Contains(t, out, "the ISO of 1.37.2 is on "+device)
		mounts, err := os.ReadFile("/proc/mounts")
		require.NoError(t, err)
		require.NotContains(t, string(mounts), m.mountPoint())
	}
	require.Contains(t, m.onNode("bin", "kubelet"), "1.37.2")
}

// loopDevice returns a device with the image, until the test is over. Where the kernel does
// not mount such a thing the test is skipped.
func loopDevice(t *testing.T, image string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root mounts a volume")
	}
	out, err := exec.CommandContext(t.Context(), "losetup", "--find", "--show", "--read-only", image).Output()
	if err != nil {
		t.Skipf("this host has no loop device to give: %v", err)
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() { _ = exec.Command("losetup", "--detach", device).Run() }) //nolint:noctx // the test's own context is over
	at := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "mount", "-t", "iso9660", "-o", "ro", device, at).CombinedOutput(); err != nil {
		t.Skipf("this kernel mounts no ISO 9660: %s", out)
	}
	require.NoError(t, exec.CommandContext(t.Context(), "umount", at).Run())
	return device
}
