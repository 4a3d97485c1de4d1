package scripts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLoad(t *testing.T) {
	require.Equal(t, []string{"kubeadm-apt", "kubeadm-bundle"}, Names())
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
	require.ErrorContains(t, err, "kubeadm-apt, kubeadm-bundle")
	_, err = Load("/nonexistent/upgrade.sh")
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "kubeadm-apt, kubeadm-bundle")
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

// machine is a node made of stand-in programs that keep what they know as files in
// state/ and note every call in the journal.
type machine struct {
	t                *testing.T
	dir, bin, runDir string
	env              map[string]string
}

// standIns are the programs, each the body of a shell script. "$state" is theirs.
var standIns = map[string]string{
	"apt-cache": `[ "$1" = madison ] || exit 9
		[ -f "$state/offered" ] || exit 0
		while read -r v; do echo " $2 | $v | https://pkgs.example/deb Packages"; done <"$state/offered"`,
	"apt-get": `
		while [ "$1" = -o ]; do shift 2; done
		if [ -f "$state/locked" ]; then echo "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (apt)"; exit 100; fi
		if [ -f "$state/interrupted" ]; then echo "E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem."; exit 100; fi
		note "$@"
		case $1 in
		update) if [ -f "$state/after-update" ] && { [ ! -f "$dir/sources/kubernetes.list" ] || grep -q v1.37 "$dir/sources/kubernetes.list"; }; then mv "$state/after-update" "$state/offered"; fi; exit 0 ;;
		esac
		case $* in *--download-only*)
			for a in "$@"; do case $a in kubeadm=*) : >"$dir/archives/kubeadm_${a#*=}_amd64.deb" ;; esac; done; exit 0 ;;
		esac
		[ ! -f "$state/broken" ] || { echo "E: Sub-process dpkg returned an error code (1)"; exit 100; }
		for a in "$@"; do case $a in *=*) grep -qx "${a%%=*}" "$state/held" && { echo "E: Held packages were changed"; exit 100; }
			echo "${a#*=}" >"$state/package-${a%%=*}" ;; esac; done`,
	"apt-mark": `note "$@"; verb=$1; shift
		touch "$state/held"
		for p in "$@"; do grep -vx "$p" "$state/held" >"$state/held.new"; mv "$state/held.new" "$state/held"
		[ "$verb" = unhold ] || echo "$p" >>"$state/held"; done`,
	"apt-config": `case $3 in *sourceparts*) echo "dir='$dir/sources/'" ;; *) echo "dir='$dir/archives/'" ;; esac`,
	"dpkg-query": `for last; do :; done
		[ -f "$state/package-$last" ] || exit 1
		echo "hi  $(cat "$state/package-$last")"`,
	"dpkg":     `note "$@"; rm -f "$state/interrupted"`,
	"dpkg-deb": `mkdir -p "$3/usr/bin" && cp "$(dirname "$0")/kubeadm" "$3/usr/bin/kubeadm"`,
	"kubeadm": `case $1 in
		version) v=$(cat "$state/package-kubeadm"); echo "v${v%-*}"; exit 0 ;;
		config) if [ "$3" = list ]; then for i in kube-apiserver:v1.37.2 kube-proxy:v1.37.2 coredns/coredns:v1 pause:3.10 etcd:3; do echo "registry.example/$i"; done; exit 0; fi ;;
		esac
		note "$@"; [ ! -f "$state/kubeadm-fails" ]`,
	"kubelet":   `v=$(cat "$state/package-kubelet"); echo "Kubernetes v${v%-*}"`,
	"crictl":    `note "$@"`,
	"ctr":       `note "$@"`,
	"systemctl": `note "$@"`,
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t, dir: t.TempDir()}
	m.bin, m.runDir = filepath.Join(m.dir, "bin"), filepath.Join(m.dir, "runs", "op-w1-upgrade")
	for _, sub := range []string{"bin", "state", "sources", "archives", "runs/op-w1-upgrade"} {
		require.NoError(t, os.MkdirAll(filepath.Join(m.dir, sub), 0o755))
	}
	for name, body := range standIns {
		m.program(name, body)
	}
	for _, p := range []string{"kubeadm", "kubelet", "kubectl"} {
		m.write("state/package-"+p, "1.36.3-1.1\n")
	}
	m.write("state/held", "kubeadm\nkubelet\nkubectl\n")
	// The newest first, as madison lists them; two of them only begin like the target.
	m.write("state/offered", "1.37.20-1.1\n1.37.2-1.2\n1.37.2-1.1\n1.37.1-1.1\n1.36.3-1.1\n")
	m.env = map[string]string{
		"PATH": m.bin + ":" + os.Getenv("PATH"), "TMPDIR": t.TempDir(), "EBB_NODE": "w1", "EBB_OPERATION": "op", "EBB_RUN_DIR": m.runDir,
		"EBB_TARGET_VERSION": "1.37.2", "EBB_CURRENT_VERSION": "1.36.3", "EBB_LOCK_WAIT": "0",
	}
	return m
}

func (m *machine) program(name, body string) {
	text := fmt.Sprintf("#!/bin/sh\ndir=%s\nstate=$dir/state\nnote() { echo %s \"$@\" >>\"$dir/journal\"; }\n%s\n", m.dir, name, body)
	require.NoError(m.t, os.WriteFile(filepath.Join(m.bin, name), []byte(text), 0o755))
}

func (m *machine) write(name, content string) {
	require.NoError(m.t, os.WriteFile(filepath.Join(m.dir, name), []byte(content), 0o644))
}

func (m *machine) read(name string) string {
	content, err := os.ReadFile(filepath.Join(m.dir, name))
	require.NoError(m.t, err)
	return string(content)
}

// run runs a shipped script and returns its exit code, its output and what it called.
func (m *machine) run(script, phase, role string) (code int, output string, calls []string) {
	m.t.Helper()
	_ = os.Remove(filepath.Join(m.dir, "journal"))
	cmd := exec.CommandContext(context.Background(), "sh", script+".sh")
	cmd.Env = []string{"EBB_PHASE=" + phase, "EBB_ROLE=" + role}
	for name, value := range m.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil {
		require.True(m.t, errors.As(err, &exit), "%v", err)
		code = exit.ExitCode()
	}
	journal, err := os.ReadFile(filepath.Join(m.dir, "journal"))
	if err == nil {
		calls = strings.Split(strings.TrimSuffix(string(journal), "\n"), "\n")
	}
	left, err := os.ReadDir(m.env["TMPDIR"])
	require.NoError(m.t, err)
	require.Empty(m.t, left, "the script cleans up")
	return code, string(out), calls
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
	t.Run("locked", func(t *testing.T) {
		m := newMachine(t)
		m.write("state/locked", "")
		for _, phase := range []string{"stage", "upgrade"} {
			code, out, calls := m.run(apt, phase, "worker")
			require.Equal(t, ExitRetry, code, out)
			require.NotContains(t, calls, "kubeadm upgrade node")
		}
		require.NoError(t, os.Remove(filepath.Join(m.dir, "state/locked")))
		code, out, _ := m.run(apt, "upgrade", "worker")
		require.Zero(t, code, out)
		require.ElementsMatch(t, []string{"kubeadm", "kubelet", "kubectl"}, strings.Fields(m.read("state/held")))
	})
	t.Run("install fails, the hold is back", func(t *testing.T) {
		m := newMachine(t)
		m.write("state/broken", "")
		code, out, calls := m.run(apt, "upgrade", "worker")
		require.Equal(t, 1, code)
		require.Contains(t, out, "apt-get could not install kubeadm=1.37.2-1.2")
		require.Equal(t, "apt-mark hold kubeadm", calls[len(calls)-1])
	})
	t.Run("interrupted before", func(t *testing.T) {
		m := newMachine(t)
		m.write("state/interrupted", "")
		code, out, calls := m.run(apt, "upgrade", "worker")
		require.Zero(t, code, out)
		require.Contains(t, calls, "dpkg --force-confdef --force-confold --configure -a")
	})
	t.Run("kubeadm fails, a second run repeats it", func(t *testing.T) {
		m := newMachine(t)
		m.write("state/kubeadm-fails", "")
		code, out, calls := m.run(apt, "upgrade", "first-control-plane")
		require.Equal(t, 1, code)
		require.Contains(t, out, "kubeadm upgrade apply v1.37.2 failed with exit code 1")
		require.NotContains(t, calls, "systemctl restart kubelet")
		require.NoError(t, os.Remove(filepath.Join(m.dir, "state/kubeadm-fails")))
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
		m.write("state/offered", "1.37.20-1.1\n1.36.3-1.1\n")
		for _, phase := range []string{"stage", "upgrade"} {
			code, out, calls := m.run(apt, phase, "worker")
			require.Equal(t, 1, code)
			require.Contains(t, out, "no apt repository of this node offers kubeadm 1.37.2")
			require.Equal(t, []string{"apt-get update"}, calls)
		}
	})
	t.Run("target not offered while the network is down", func(t *testing.T) {
		m := newMachine(t)
		m.write("state/offered", "1.36.3-1.1\n")
		m.program("apt-get", `echo "W: Failed to fetch https://pkgs.example/deb/InRelease  Temporary failure resolving"`)
		code, out, _ := m.run(apt, "stage", "worker")
		require.Equal(t, ExitRetry, code, out)
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
		"crictl pull registry.example/kube-proxy:v1.37.2",
		"crictl pull registry.example/coredns/coredns:v1",
		"crictl pull registry.example/pause:3.10",
	}, calls)
	require.Equal(t, "1.36.3-1.1\n", m.read("state/package-kubelet"))
	require.Equal(t, "kubeadm\nkubelet\nkubectl\n", m.read("state/held"))

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
	require.NoError(t, os.Remove(filepath.Join(m.bin, "crictl")))
	m.env["EBB_MIRRORS_DIR"] = filepath.Join(m.dir, "certs.d")
	pulls := func() []string {
		code, out, calls := m.run(apt, "stage", "worker")
		require.Zero(t, code, out)
		return calls[len(calls)-3:]
	}
	require.Equal(t, "ctr -n k8s.io images pull registry.example/kube-proxy:v1.37.2", pulls()[0])
	require.NoError(t, os.Mkdir(m.env["EBB_MIRRORS_DIR"], 0o755))
	require.Equal(t, "ctr -n k8s.io images pull --hosts-dir "+m.env["EBB_MIRRORS_DIR"]+" registry.example/kube-proxy:v1.37.2", pulls()[0])
}

func TestAptStageSwitchesRepository(t *testing.T) {
	m := newMachine(t)
	m.write("state/offered", "1.36.3-1.1\n")
	m.write("state/after-update", "1.37.2-1.1\n1.36.3-1.1\n")
	line := "deb [signed-by=/etc/apt/keyrings/k.gpg] https://pkgs.k8s.io/core:/stable:/v1.36/deb/ /\n"
	m.write("sources/kubernetes.list", "# "+line+line)
	m.write("sources/other.list", "deb https://other.example/v1.36/deb/ /\n")
	m.write("sources/note.txt", line)
	code, out, calls := m.run(apt, "stage", "worker")
	require.Zero(t, code, out)
	require.Equal(t, []string{"apt-get update", "apt-get update"}, calls[:2])
	require.Equal(t, "# "+line+strings.Replace(line, "v1.36", "v1.37", 1), m.read("sources/kubernetes.list"))
	require.Equal(t, "deb https://other.example/v1.36/deb/ /\n", m.read("sources/other.list"))
	require.Equal(t, line, m.read("sources/note.txt"))
	files, err := os.ReadDir(filepath.Join(m.dir, "sources"))
	require.NoError(t, err)
	require.Len(t, files, 3)
}

// bundleMachine has its programs in bin and the target's in a bundle.
func bundleMachine(t *testing.T) *machine {
	m := newMachine(t)
	m.env["EBB_BUNDLE_DIR"] = filepath.Join(m.dir, "bundle")
	require.NoError(t, os.MkdirAll(filepath.Join(m.dir, "bundle/1.37.2/images"), 0o755))
	for _, where := range []struct{ dir, version string }{{m.bin, "1.36.3"}, {filepath.Join(m.dir, "bundle/1.37.2"), "1.37.2"}} {
		bin := m.bin
		m.bin = where.dir
		m.program("kubeadm", `[ "$1" = version ] && { echo v`+where.version+`; exit 0; }; note "$@"`)
		m.program("kubelet", "echo Kubernetes v"+where.version)
		m.program("kubectl", "echo Client Version: v"+where.version)
		m.bin = bin
	}
	m.write("bundle/1.37.2/images/all.tar", "images")
	return m
}

func TestBundle(t *testing.T) {
	m := bundleMachine(t)
	m.env["EBB_KUBEADM_FLAGS"] = "--v=2"
	code, out, calls := m.run(bundle, "stage", "first-control-plane")
	require.Zero(t, code, out)
	require.Equal(t, []string{"ctr -n k8s.io images import " + m.dir + "/bundle/1.37.2/images/all.tar"}, calls)
	code, out, calls = m.run(bundle, "stage", "first-control-plane")
	require.Zero(t, code, out)
	require.Empty(t, calls, "images are imported once")
	require.Contains(t, m.read("bin/kubelet"), "1.36.3")

	code, out, calls = m.run(bundle, "upgrade", "first-control-plane")
	require.Zero(t, code, out)
	require.Equal(t, []string{"kubeadm upgrade apply v1.37.2 -y --v=2", "systemctl daemon-reload", "systemctl restart kubelet"}, calls)
	for _, name := range []string{"kubeadm", "kubelet", "kubectl"} {
		require.Equal(t, m.read("bundle/1.37.2/"+name), m.read("bin/"+name))
		require.NoFileExists(t, filepath.Join(m.bin, name+".ebb-new"))
	}
	code, out, calls = m.run(bundle, "upgrade", "first-control-plane")
	require.Zero(t, code, out)
	require.Empty(t, calls, "nothing is done twice")
}

func TestBundleFailures(t *testing.T) {
	m := bundleMachine(t)
	m.env["EBB_TARGET_VERSION"] = "1.37.20"
	code, out, _ := m.run(bundle, "stage", "worker")
	require.Equal(t, 1, code)
	require.Contains(t, out, "there is no bundle of 1.37.20")

	m = bundleMachine(t)
	m.write("bundle/1.37.2/kubelet", "#!/bin/sh\necho Kubernetes v1.37.20\n")
	code, out, _ = m.run(bundle, "stage", "worker")
	require.Equal(t, 1, code)
	require.Contains(t, out, "is not 1.37.2")
}
