package scripts

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"ebb/internal/sandbox/nodedir"
	"ebb/internal/sandbox/nodetools"
)

func TestLoad(t *testing.T) {
	require.Equal(t, []string{"cks-iso", "kubeadm-apt", "kubeadm-bundle"}, Names())
	for _, name := range Names() {
		script, err := Load(name)
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(string(script), "#!/bin/sh\n"))
	}
	own := filepath.Join(t.TempDir(), "own.sh")
	require.NoError(t, os.WriteFile(own, []byte("true\n"), 0o600))
	script, err := Load(own)
	require.NoError(t, err)
	require.Equal(t, "true\n", string(script))

	_, err = Load("kubeadm-yum")
	require.ErrorContains(t, err, "cks-iso, kubeadm-apt, kubeadm-bundle")
	_, err = Load("/nonexistent/upgrade.sh")
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "cks-iso, kubeadm-apt, kubeadm-bundle")
}

func TestSyntax(t *testing.T) {
	for _, name := range Names() {
		out, err := exec.CommandContext(context.Background(), "sh", "-n", name+".sh").CombinedOutput()
		require.NoError(t, err, string(out))
		if linter, err := exec.LookPath("shellcheck"); err == nil {
			out, err := exec.CommandContext(context.Background(), linter, "-s", "dash", name+".sh").CombinedOutput()
			require.NoError(t, err, string(out))
		}
	}
}

// machine is a node of the sandbox without a sandbox: its programs are those of
// nodetools, and what they ask the API server is answered here.
type machine struct {
	t      *testing.T
	node   nodedir.Dir
	runDir string
	env    map[string]string
}

// TestMain is also each of the node's programs, by the name that it is called with.
func TestMain(m *testing.M) {
	if name, args := nodetools.Named(os.Args); slices.Contains(nodetools.Names(), name) {
		os.Exit(nodetools.Main(name, args))
	}
	os.Exit(m.Run())
}

// newMachine is a control plane at 1.36.3, with the lists of 1.37 read.
func newMachine(t *testing.T) *machine {
	t.Helper()
	dir := t.TempDir()
	m := &machine{t: t, node: nodedir.Of(dir, "w1"), runDir: filepath.Join(dir, "runs", "op-w1-upgrade")}
	require.NoError(t, os.MkdirAll(m.runDir, 0o755))
	self, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, m.node.Create(serveAPI(t, dir), "1.36.3", self, nodetools.Names()))
	m.source("kubernetes.list", entry("v1.37"))
	m.change(func(p *nodedir.Packages) {
		// The newest first, as madison lists them; two of them only begin like the target.
		p.Published = []string{"1.37.20-1.1", "1.37.2-1.2", "1.37.2-1.1", "1.37.1-1.1", "1.36.3-1.1"}
		p.Lists = []string{"1.37"}
	})
	m.program("kubectl", `[ "$1" = version ] && echo Client Version: v1.36.3`)
	m.env = map[string]string{
		"PATH": m.node.Bin() + ":" + os.Getenv("PATH"), "TMPDIR": t.TempDir(), "EBB_NODE": "w1", "EBB_OPERATION": "op", "EBB_RUN_DIR": m.runDir,
		"EBB_TARGET_VERSION": "1.37.2", "EBB_CURRENT_VERSION": "1.36.3", "EBB_LOCK_WAIT": "0",
	}
	return m
}

// serveAPI answers every request with the ConfigMap kubeadm-config of a cluster at
// 1.36.3, and returns what a control plane knows of its cluster.
func serveAPI(t *testing.T, dir string) nodedir.Info {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"data": {"ClusterConfiguration": "kubernetesVersion: v1.36.3"}}`)
	}))
	t.Cleanup(server.Close)
	own := server.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	require.NoError(t, err)
	pair := nodedir.KeyPair{Cert: filepath.Join(dir, "node.crt"), Key: filepath.Join(dir, "node.key")}
	require.NoError(t, os.WriteFile(pair.Cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Certificate[0]}), 0o600))
	require.NoError(t, os.WriteFile(pair.Key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600))
	return nodedir.Info{Name: "w1", ControlPlane: true, API: server.URL, CA: pair.Cert, Kubelet: pair, Admin: pair}
}

// entry is a line of apt's sources for the community's repository of a minor.
func entry(minor string) string {
	return "deb [signed-by=/etc/apt/keyrings/k.gpg] https://pkgs.k8s.io/core:/stable:/" + minor + "/deb/ /\n"
}

func (m *machine) source(name, content string) {
	require.NoError(m.t, os.WriteFile(filepath.Join(m.node.Sources(), name), []byte(content), 0o644))
}

func (m *machine) readSource(name string) string {
	content, err := os.ReadFile(filepath.Join(m.node.Sources(), name))
	require.NoError(m.t, err)
	return string(content)
}

// change changes the state of the package manager.
func (m *machine) change(edit func(*nodedir.Packages)) {
	require.NoError(m.t, m.node.ChangePackages(func(p *nodedir.Packages) error { edit(p); return nil }))
}

// set sets what goes wrong on the machine.
func (m *machine) set(f nodedir.Faults) { require.NoError(m.t, m.node.WriteFaults(f)) }

func (m *machine) requirePackages(version string) {
	m.t.Helper()
	p, err := m.node.Packages()
	require.NoError(m.t, err)
	want := nodedir.Package{Version: version, Held: true}
	require.Equal(m.t, map[string]nodedir.Package{"kubeadm": want, "kubelet": want, "kubectl": want}, p.Installed)
}

// program puts a shell script in the place of a program.
func (m *machine) program(name, body string) {
	writeProgram(m.t, filepath.Join(m.node.Bin(), name), body)
}

func writeProgram(t *testing.T, path, body string) {
	t.Helper()
	require.NoError(t, os.RemoveAll(path)) // it may be a link
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o755))
}

// run runs a shipped script and returns its exit code, its output and the commands
// that it ran, without those that only read.
func (m *machine) run(script, phase, role string) (code int, output string, calls []string) {
	m.t.Helper()
	require.NoError(m.t, nodedir.Unmark(m.node.Journal()))
	m.env["EBB_PHASE"], m.env["EBB_ROLE"] = phase, role
	out, err := m.command(script).CombinedOutput()
	var exit *exec.ExitError
	if err != nil {
		require.True(m.t, errors.As(err, &exit), "%v", err)
		code = exit.ExitCode()
	}
	left, err := os.ReadDir(m.env["TMPDIR"])
	require.NoError(m.t, err)
	require.Empty(m.t, left, "the script cleans up")
	return code, string(out), m.calls()
}

// command is a run of a shipped script.
func (m *machine) command(script string) *exec.Cmd {
	cmd := exec.CommandContext(context.Background(), "sh", script+".sh")
	for name, value := range m.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return cmd
}

// start starts a shipped script in a process group of its own.
func (m *machine) start(script string) *exec.Cmd {
	m.t.Helper()
	cmd := m.command(script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(m.t, cmd.Start())
	return cmd
}

// stop stops a script as Ebb does when it is out of time, and waits for its end.
func (m *machine) stop(cmd *exec.Cmd) {
	m.t.Helper()
	require.NoError(m.t, syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM))
	require.Error(m.t, cmd.Wait())
}

var (
	reading  = regexp.MustCompile(`^(apt-cache|dpkg-deb|kubelet --version|kubeadm version|kubeadm config images list|kubectl version)`)
	settings = regexp.MustCompile(` -o \S+`) // of apt-get
)

func (m *machine) calls() []string {
	commands, err := m.node.Commands()
	require.NoError(m.t, err)
	var calls []string
	for _, command := range commands {
		if strings.HasPrefix(command, "apt-get ") {
			command = settings.ReplaceAllString(command, "")
		}
		if !reading.MatchString(command) {
			calls = append(calls, command)
		}
	}
	return calls
}

// lastLine is what becomes of an output in an operation's message.
func lastLine(output string) string {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	return lines[len(lines)-1]
}

const (
	apt    = "kubeadm-apt"
	bundle = "kubeadm-bundle"
)

func TestAptUpgrade(t *testing.T) {
	for role, command := range map[string]string{
		"first-control-plane": "kubeadm upgrade apply v1.37.2 -y --ignore-preflight-errors=SystemVerification --v=2",
		"control-plane":       "kubeadm upgrade node --ignore-preflight-errors=SystemVerification --v=2",
		"worker":              "kubeadm upgrade node --ignore-preflight-errors=SystemVerification --v=2",
	} {
		t.Run(role, func(t *testing.T) {
			m := newMachine(t)
			m.env["EBB_KUBEADM_FLAGS"] = "--ignore-preflight-errors=SystemVerification --v=2"
			code, out, calls := m.run(apt, "upgrade", role)
			require.Zero(t, code, out)
			require.Equal(t, []string{
				"apt-mark unhold kubeadm",
				"apt-get install -y --no-install-recommends kubeadm=1.37.2-1.2",
				"apt-mark hold kubeadm",
				command,
				"apt-mark unhold kubelet kubectl",
				"apt-get install -y --no-install-recommends kubelet=1.37.2-1.2 kubectl=1.37.2-1.2",
				"apt-mark hold kubelet kubectl",
				"systemctl daemon-reload",
				"systemctl restart kubelet",
			}, calls)

			code, out, calls = m.run(apt, "upgrade", role)
			require.Zero(t, code, out)
			require.Equal(t, []string{"apt-mark hold kubeadm", "apt-mark hold kubelet kubectl"}, calls, "nothing is done twice")
		})
	}
}

// Another operation does not trust what an earlier one noted: kubeadm may repeat.
func TestAptUpgradeByAnotherOperation(t *testing.T) {
	m := newMachine(t)
	code, out, _ := m.run(apt, "upgrade", "worker")
	require.Zero(t, code, out)
	m.env["EBB_OPERATION"] = "other"
	_, _, calls := m.run(apt, "upgrade", "worker")
	require.Contains(t, calls, "kubeadm upgrade node")
	require.Contains(t, calls, "systemctl restart kubelet")
}

func TestAptFailures(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: runs a script many times")
	}
	t.Run("locked", func(t *testing.T) {
		m := newMachine(t)
		m.set(nodedir.Faults{AptLocked: true})
		for _, phase := range []string{"stage", "upgrade"} {
			code, out, calls := m.run(apt, phase, "worker")
			require.Equal(t, ExitRetry, code, out)
			require.NotContains(t, calls, "kubeadm upgrade node")
		}
		m.set(nodedir.Faults{})
		code, out, _ := m.run(apt, "upgrade", "worker")
		require.Zero(t, code, out)
		m.requirePackages("1.37.2-1.2")
	})
	t.Run("install fails, the hold is back", func(t *testing.T) {
		m := newMachine(t)
		require.NoError(t, os.Remove(m.node.Archives())) // apt-get cannot put packages into its cache
		code, out, calls := m.run(apt, "upgrade", "worker")
		require.Equal(t, 1, code)
		require.Contains(t, out, "apt-get could not install kubeadm=1.37.2-1.2")
		require.Equal(t, "apt-mark hold kubeadm", calls[len(calls)-1])
	})
	t.Run("interrupted before", func(t *testing.T) {
		m := newMachine(t)
		m.change(func(p *nodedir.Packages) { p.Interrupted = true })
		code, out, calls := m.run(apt, "upgrade", "worker")
		require.Zero(t, code, out)
		require.Contains(t, calls, "dpkg --force-confdef --force-confold --configure -a")
	})
	t.Run("kubeadm fails, a second run repeats it", func(t *testing.T) {
		m := newMachine(t)
		m.set(nodedir.Faults{Exit: 1})
		code, out, calls := m.run(apt, "upgrade", "first-control-plane")
		require.Equal(t, 1, code)
		require.Contains(t, out, "kubeadm upgrade apply v1.37.2 failed with exit code 1")
		require.NotContains(t, calls, "systemctl restart kubelet")
		m.set(nodedir.Faults{})
		code, out, calls = m.run(apt, "upgrade", "first-control-plane")
		require.Zero(t, code, out)
		require.Contains(t, calls, "kubeadm upgrade apply v1.37.2 -y")
	})
	t.Run("another kubelet on PATH", func(t *testing.T) {
		m := newMachine(t)
		m.program("kubelet", "echo Kubernetes v1.37.20")
		code, out, calls := m.run(apt, "upgrade", "worker")
		require.Equal(t, 1, code)
		require.Contains(t, out, "is not 1.37.2")
		require.Contains(t, out, "Kubernetes v1.37.20")
		require.NotContains(t, calls, "systemctl restart kubelet")
	})
	t.Run("target not offered", func(t *testing.T) {
		m := newMachine(t)
		m.change(func(p *nodedir.Packages) { p.Published = []string{"1.37.20-1.1", "1.36.3-1.1"} })
		for _, phase := range []string{"stage", "upgrade"} {
			code, out, calls := m.run(apt, phase, "worker")
			require.Equal(t, 1, code)
			require.Contains(t, out, "no apt repository of this node offers kubeadm 1.37.2")
			require.Equal(t, []string{"apt-get update"}, calls)
		}
	})
	t.Run("target not offered while the network is down", func(t *testing.T) {
		m := newMachine(t)
		m.change(func(p *nodedir.Packages) { p.Lists = []string{"1.36"} })
		m.set(nodedir.Faults{MirrorDown: true})
		for _, phase := range []string{"stage", "upgrade"} {
			code, out, _ := m.run(apt, phase, "worker")
			require.Equal(t, ExitRetry, code, out)
		}
	})
	t.Run("target offered and the network is down", func(t *testing.T) {
		m := newMachine(t)
		m.set(nodedir.Faults{MirrorDown: true})
		code, out, _ := m.run(apt, "upgrade", "worker")
		require.Equal(t, ExitRetry, code, out)
		require.Contains(t, out, "apt-get install could not download")
	})
	t.Run("the repository's key has expired", func(t *testing.T) {
		m := newMachine(t)
		m.change(func(p *nodedir.Packages) { p.Lists = []string{"1.36"} })
		m.set(nodedir.Faults{KeyExpired: true})
		code, out, calls := m.run(apt, "stage", "worker")
		require.Equal(t, 1, code, "trying again would not help: %s", out)
		require.Contains(t, lastLine(out), "renew its key")
		require.Contains(t, lastLine(out), "W: Failed to fetch https://pkgs.k8s.io/core:/stable:/v1.37/deb/InRelease  The following signatures were invalid: EXPKEYSIG 234654DA9A296436")
		require.NotContains(t, strings.Join(calls, "\n"), "install")
	})
	t.Run("the repository's key has expired, and the target is in the lists", func(t *testing.T) {
		m := newMachine(t)
		m.set(nodedir.Faults{KeyExpired: true})
		code, out, _ := m.run(apt, "stage", "worker")
		require.Zero(t, code, out)
	})
	t.Run("a dependency is held back", func(t *testing.T) {
		m := newMachine(t)
		m.set(nodedir.Faults{HeldBack: true})
		code, out, _ := m.run(apt, "stage", "worker")
		require.Equal(t, 1, code)
		require.Contains(t, lastLine(out), "kubelet=1.37.2-1.2 kubectl=1.37.2-1.2: kubelet : Depends: kubernetes-cni (>= 1.6.0) but 1.2.0-2.1 is to be installed; E: Unable to correct problems, you have held broken packages.")
	})
	t.Run("bad contract", func(t *testing.T) {
		m := newMachine(t)
		code, _, _ := m.run(apt, "upgrade", "queen")
		require.Equal(t, 1, code)
		code, _, _ = m.run(apt, "dance", "worker")
		require.Equal(t, 1, code)
	})
}

func TestAptStage(t *testing.T) {
	m := newMachine(t)
	code, out, calls := m.run(apt, "stage", "worker")
	require.Zero(t, code, out)
	require.Equal(t, []string{
		"apt-get update",
		"apt-get install -y --no-install-recommends --download-only --allow-change-held-packages kubeadm=1.37.2-1.2 kubelet=1.37.2-1.2 kubectl=1.37.2-1.2",
		"crictl pull registry.k8s.io/kube-proxy:v1.37.2",
		"crictl pull registry.k8s.io/coredns/coredns:v1.14.2",
		"crictl pull registry.k8s.io/pause:3.11",
	}, calls)
	m.requirePackages("1.36.3-1.1")

	_, _, calls = m.run(apt, "stage", "control-plane")
	require.Equal(t, "kubeadm config images pull --kubernetes-version v1.37.2", calls[len(calls)-1])

	code, out, _ = m.run(apt, "upgrade", "worker")
	require.Zero(t, code, out)
	code, out, calls = m.run(apt, "stage", "worker")
	require.Zero(t, code, out)
	require.NotContains(t, strings.Join(calls, "\n"), "install", "installed packages are not fetched")
}

// A node without crictl pulls with ctr, which has to be told of the mirrors.
func TestAptStageUsesMirrors(t *testing.T) {
	m := newMachine(t)
	require.NoError(t, os.Remove(filepath.Join(m.node.Bin(), "crictl")))
	m.env["EBB_MIRRORS_DIR"] = filepath.Join(t.TempDir(), "certs.d")
	pulls := func() []string {
		code, out, calls := m.run(apt, "stage", "worker")
		require.Zero(t, code, out)
		return calls[len(calls)-3:]
	}
	require.Equal(t, "ctr -n k8s.io images pull registry.k8s.io/kube-proxy:v1.37.2", pulls()[0])
	require.NoError(t, os.Mkdir(m.env["EBB_MIRRORS_DIR"], 0o755))
	require.Equal(t, "ctr -n k8s.io images pull --hosts-dir "+m.env["EBB_MIRRORS_DIR"]+" registry.k8s.io/kube-proxy:v1.37.2", pulls()[0])
}

func TestAptStageSwitchesRepository(t *testing.T) {
	m := newMachine(t)
	m.change(func(p *nodedir.Packages) { p.Lists = []string{"1.36"} })
	const other = "deb https://other.example/v1.36/deb/ /\n"
	m.source("kubernetes.list", "# "+entry("v1.36")+entry("v1.36"))
	m.source("other.list", other)
	m.source("note.txt", entry("v1.36"))
	code, out, calls := m.run(apt, "stage", "worker")
	require.Zero(t, code, out)
	require.Equal(t, []string{"apt-get update", "apt-get update"}, calls[:2])
	require.Equal(t, "# "+entry("v1.36")+entry("v1.37"), m.readSource("kubernetes.list"))
	require.Equal(t, other, m.readSource("other.list"))
	require.Equal(t, entry("v1.36"), m.readSource("note.txt"))
	files, err := os.ReadDir(m.node.Sources())
	require.NoError(t, err)
	require.Len(t, files, 3)
}

// bundleMachine has its programs of 1.36.3 in a folder of its own, first on PATH, and
// the target's in a bundle.
type bundleMachine struct {
	*machine
	bin, bundle string // directories
}

func newBundleMachine(t *testing.T) bundleMachine {
	t.Helper()
	m := bundleMachine{newMachine(t), t.TempDir(), filepath.Join(t.TempDir(), "1.37.2")}
	m.env["EBB_BUNDLE_DIR"], m.env["PATH"] = filepath.Dir(m.bundle), m.bin+":"+m.env["PATH"]
	require.NoError(t, os.MkdirAll(filepath.Join(m.bundle, "images"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(m.bundle, "images/all.tar"), []byte("images"), 0o644))
	for dir, version := range map[string]string{m.bin: "1.36.3", m.bundle: "1.37.2"} {
		for _, name := range []string{"kubeadm", "kubelet"} {
			writeProgram(t, filepath.Join(dir, name), nodetools.AsVersion(version)+" exec "+filepath.Join(m.node.Bin(), name)+` "$@"`)
		}
		writeProgram(t, filepath.Join(dir, "kubectl"), "echo Client Version: v"+version)
	}
	return m
}

func (m bundleMachine) read(path string) string {
	content, err := os.ReadFile(path)
	require.NoError(m.t, err)
	return string(content)
}

func TestBundle(t *testing.T) {
	m := newBundleMachine(t)
	m.env["EBB_KUBEADM_FLAGS"] = "--v=2"
	code, out, calls := m.run(bundle, "stage", "first-control-plane")
	require.Zero(t, code, out)
	require.Equal(t, []string{"ctr -n k8s.io images import " + m.bundle + "/images/all.tar"}, calls)
	code, out, calls = m.run(bundle, "stage", "first-control-plane")
	require.Zero(t, code, out)
	require.Empty(t, calls, "images are imported once")
	require.Contains(t, m.read(m.bin+"/kubelet"), "1.36.3")

	code, out, calls = m.run(bundle, "upgrade", "first-control-plane")
	require.Zero(t, code, out)
	require.Equal(t, []string{"kubeadm upgrade apply v1.37.2 -y --v=2", "systemctl daemon-reload", "systemctl restart kubelet"}, calls)
	for _, name := range []string{"kubeadm", "kubelet", "kubectl"} {
		require.Equal(t, m.read(filepath.Join(m.bundle, name)), m.read(filepath.Join(m.bin, name)))
		require.NoFileExists(t, filepath.Join(m.bin, name+".ebb-new"))
	}
	code, out, calls = m.run(bundle, "upgrade", "first-control-plane")
	require.Zero(t, code, out)
	require.Empty(t, calls, "nothing is done twice")
}

func TestBundleFailures(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: runs a script many times")
	}
	m := newBundleMachine(t)
	m.env["EBB_TARGET_VERSION"] = "1.37.20"
	code, out, _ := m.run(bundle, "stage", "worker")
	require.Equal(t, 1, code)
	require.Contains(t, out, "there is no bundle of 1.37.20")

	m = newBundleMachine(t)
	writeProgram(t, filepath.Join(m.bundle, "kubelet"), "echo Kubernetes v1.37.20")
	code, out, _ = m.run(bundle, "stage", "worker")
	require.Equal(t, 1, code)
	require.Contains(t, out, "is not 1.37.2")
}
