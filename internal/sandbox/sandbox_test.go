package sandbox

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubecluster "ebb/internal/cluster"
	"ebb/internal/config"
	"ebb/internal/infra"
)

// login connects to a node as ebb.yaml says.
func login(c config.Cluster, node string) (*ssh.Client, error) {
	pem, err := os.ReadFile(c.SSH.IdentityFile)
	if err != nil {
		return nil, err
	}
	key, err := ssh.ParsePrivateKey(pem)
	if err != nil {
		return nil, err
	}
	known, err := knownhosts.New(c.SSH.KnownHosts)
	if err != nil {
		return nil, err
	}
	port := 0
	for _, rule := range c.Addressing.Rules {
		if rule.Node == node {
			port = rule.Port
		}
	}
	return ssh.Dial("tcp", net.JoinHostPort(c.Addressing.PublicAddress, strconv.Itoa(port)), &ssh.ClientConfig{
		User: c.SSH.User, Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyCallback: known, Timeout: 5 * time.Second,
	})
}

// shell is one connection on which commands are run.
type shell struct {
	t      *testing.T
	client *ssh.Client
}

func dial(t *testing.T, c config.Cluster, node string) shell {
	t.Helper()
	client, err := login(c, node)
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return shell{t, client}
}

// run returns the outputs and the exit code of a script that sh reads from its input.
func (s shell) run(script string) (out, errOut string, code int) {
	s.t.Helper()
	session, err := s.client.NewSession()
	require.NoError(s.t, err)
	defer func() { _ = session.Close() }()
	var stdout, stderr bytes.Buffer
	session.Stdin, session.Stdout, session.Stderr = strings.NewReader(script), &stdout, &stderr
	if err := session.Run("sudo -n sh -s"); err != nil {
		var exit *ssh.ExitError
		require.ErrorAs(s.t, err, &exit)
		code = exit.ExitStatus()
	}
	return stdout.String(), stderr.String(), code
}

// must returns what a script printed; it has to end well.
func (s shell) must(script string) string {
	s.t.Helper()
	out, errOut, code := s.run(script)
	require.Equal(s.t, 0, code, "%s\n%s%s", script, out, errOut)
	return strings.TrimSpace(out)
}

// script runs a shipped upgrade script.
func (s shell) script(phase, role string) (out string, code int) {
	s.t.Helper()
	body, err := os.ReadFile("../scripts/kubeadm-apt.sh")
	require.NoError(s.t, err)
	env := fmt.Sprintf("export EBB_PHASE=%s EBB_ROLE=%s EBB_TARGET_VERSION=1.37.2\n", phase, role)
	stdout, stderr, code := s.run("cat > upgrade.sh <<'END_OF_SCRIPT'\n" + string(body) + "\nEND_OF_SCRIPT\n" + env + "sh upgrade.sh 2>&1 </dev/null\n")
	return stdout + stderr, code
}

func TestSandbox(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: starts a control plane")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
	defer cancel()
	s, err := Start(ctx, Options{
		Dir: filepath.Join(t.TempDir(), "sandbox"), ControlPlanes: 1, Workers: 3,
		PodReadyDelay: 300 * time.Millisecond, PodDeleteDelay: 200 * time.Millisecond, ScriptDelay: 200 * time.Millisecond, Log: zaptest.NewLogger(t),
	})
	require.NoError(t, err)
	defer s.Stop()
	cluster := s.Cluster("demo")

	t.Run("nodes", func(t *testing.T) { testNodes(ctx, t, s) })
	t.Run("configuration", func(t *testing.T) { testConfig(t, s, cluster) })
	t.Run("eviction", func(t *testing.T) { testEviction(ctx, t, s) })
	t.Run("programs of a node", func(t *testing.T) { testPrograms(t, s, cluster) })
	t.Run("upgrade", func(t *testing.T) { testUpgrade(ctx, t, s, cluster) })
	t.Run("connections", func(t *testing.T) { testConnections(t, s, cluster) })
	t.Run("API restart", func(t *testing.T) { testRestart(ctx, t, s) })
	t.Run("power", func(t *testing.T) { testPower(ctx, t, s, cluster) })
	t.Run("destroy", func(t *testing.T) { testDestroy(ctx, t, s, cluster) })
	t.Run("stop", func(t *testing.T) { testStop(t, s, cluster) })
}

func testNodes(ctx context.Context, t *testing.T, s *Sandbox) {
	nodes, err := s.Nodes(ctx)
	require.NoError(t, err)
	require.Len(t, nodes, 4)
	ids := map[string]bool{}
	for i, want := range []string{"cp1", "w1", "w2", "w3"} {
		n := nodes[i]
		require.Equal(t, want, n.Name)
		require.True(t, kubecluster.NodeReady(&n))
		require.Equal(t, "v1.36.3", n.Status.NodeInfo.KubeletVersion)
		require.Regexp(t, "^[0-9a-f]{32}$", n.Status.NodeInfo.MachineID)
		require.Equal(t, s.Machine(want).MachineID(), n.Status.NodeInfo.MachineID)
		require.Equal(t, "sandbox://"+want, n.Spec.ProviderID)
		require.Equal(t, want, n.Labels[core.LabelHostname])
		ids[n.Status.NodeInfo.MachineID] = true
	}
	require.Len(t, ids, 4)
	require.Equal(t, []core.Taint{{Key: controlPlaneLabel, Effect: core.TaintEffectNoSchedule}}, nodes[0].Spec.Taints)
	require.Contains(t, nodes[0].Labels, controlPlaneLabel)
	require.Empty(t, nodes[1].Spec.Taints)

	config, err := s.Client().CoreV1().ConfigMaps("kube-system").Get(ctx, kubeadmConfigName, meta.GetOptions{})
	require.NoError(t, err)
	require.Contains(t, config.Data["ClusterConfiguration"], "\nkubernetesVersion: v1.36.3\n")
	mirror, err := s.Client().CoreV1().Pods("kube-system").Get(ctx, "etcd-cp1", meta.GetOptions{})
	require.NoError(t, err)
	require.Contains(t, mirror.Annotations, core.MirrorPodAnnotationKey)
}

func testConfig(t *testing.T, s *Sandbox, cluster config.Cluster) {
	path := filepath.Join(t.TempDir(), "ebb.yaml")
	require.NoError(t, s.WriteConfig(path, cluster))
	loaded, err := config.Load(path)
	require.NoError(t, err)
	got, err := loaded.Cluster("demo")
	require.NoError(t, err)
	require.Equal(t, cluster.WithDefaults(), got)
	for _, file := range []string{path, s.Kubeconfig(), cluster.SSH.IdentityFile} {
		info, err := os.Stat(file)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), file)
	}
}

func testEviction(ctx context.Context, t *testing.T, s *Sandbox) {
	require.NoError(t, s.Deploy(ctx, Workload{Name: "web", Replicas: 6, Spread: true, Budget: &Budget{MaxUnavailable: "1"}}))
	api := s.Client().CoreV1().Pods(Namespace)
	list := func() []core.Pod {
		pods, err := api.List(ctx, meta.ListOptions{LabelSelector: "app=web"})
		require.NoError(t, err)
		return pods.Items
	}
	before := list()
	require.Len(t, before, 6)
	perNode := map[string]int{}
	for _, p := range before {
		require.True(t, PodReady(&p))
		perNode[p.Spec.NodeName]++
	}
	require.Equal(t, map[string]int{"w1": 2, "w2": 2, "w3": 2}, perNode)

	evict := func(name string) error {
		return api.EvictV1(ctx, &policy.Eviction{ObjectMeta: meta.ObjectMeta{Name: name, Namespace: Namespace}})
	}
	require.NoError(t, evict(before[0].Name))
	require.True(t, apierrors.IsTooManyRequests(evict(before[1].Name)), "the budget allows one at a time")
	require.Eventually(t, func() bool {
		good := 0
		for _, p := range list() {
			if p.UID == before[0].UID {
				return false
			}
			if PodReady(&p) {
				good++
			}
		}
		return good == 6
	}, 10*time.Second, 50*time.Millisecond)

	require.NoError(t, s.SetBudget(ctx, "web", Budget{MinAvailable: "100%"}))
	require.True(t, apierrors.IsTooManyRequests(evict(before[1].Name)))
	require.NoError(t, s.DeleteBudget(ctx, "web"))
	require.NoError(t, evict(before[1].Name))
	require.NoError(t, s.DeployBare(ctx, Workload{Name: "bare", Replicas: 1, Nodes: []string{"w2"}, Unready: true}))
	pod, err := api.Get(ctx, "bare-1", meta.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "w2", pod.Spec.NodeName)
	require.Empty(t, pod.OwnerReferences)
	require.False(t, PodReady(pod))
}

func testPrograms(t *testing.T, s *Sandbox, cluster config.Cluster) {
	m, sh := s.Machine("w3"), dial(t, cluster, "w3")
	require.Equal(t, m.Home(), sh.must("pwd"))
	require.Equal(t, m.MachineID(), sh.must("cat /etc/machine-id"))
	require.Equal(t, "v1.36.3", sh.must("kubeadm version -o short"))
	require.Equal(t, "Kubernetes v1.36.3", sh.must("kubelet --version"))
	require.Equal(t, "hi  1.36.3-1.1", sh.must(`dpkg-query -W -f '${db:Status-Abbrev} ${Version}\n' kubeadm`))
	free := "df -Pk / | tail -n 1 | tr -s ' ' | cut -d ' ' -f 4"
	require.Equal(t, strconv.Itoa(30<<20), sh.must(free))
	_, _, code := sh.run("systemd-run --unit=x true")
	require.Equal(t, 1, code)

	// The repositories: one a minor; held packages; exact versions.
	require.NotContains(t, sh.must("apt-cache madison kubeadm"), "1.37")
	sh.must(`sed -i 's/v1.36/v1.37/' "$(apt-config shell d Dir::Etc::sourceparts/d | cut -d "'" -f 2)"kubernetes.list && apt-get update`)
	require.Contains(t, sh.must("apt-cache madison kubeadm"), "kubeadm | 1.37.3-1.1 | https://pkgs.k8s.io/core:/stable:/v1.37/deb  Packages\n")
	_, errOut, code := sh.run("apt-get install -y kubeadm=1.37.2-1.1")
	require.Equal(t, 100, code)
	require.Contains(t, errOut, "E: Held packages were changed")
	sh.must("apt-mark unhold kubeadm && apt-get install -y kubeadm=1.37.2-1.1 && apt-mark hold kubeadm")
	require.Equal(t, "v1.37.2", sh.must("kubeadm version -o short"))
	_, errOut, code = sh.run("apt-get install -y --allow-change-held-packages kubelet=1.37.9-1.1")
	require.Equal(t, 100, code)
	require.Contains(t, errOut, "E: Version '1.37.9-1.1' for 'kubelet' was not found")
	_, errOut, code = sh.run("kubeadm upgrade apply v1.37.2 -y")
	require.Equal(t, 1, code)
	require.Contains(t, errOut, "/etc/kubernetes/admin.conf: no such file")
	require.Contains(t, m.Commands(), "kubeadm upgrade apply v1.37.2 -y")

	require.NoError(t, m.SetDiskFull(true))
	require.Equal(t, strconv.Itoa(12<<10), sh.must(free))
	require.NoError(t, m.SetMachineID(strings.Repeat("0", 32)))
	require.Equal(t, strings.Repeat("0", 32), sh.must("cat /etc/machine-id"))
	require.NoError(t, m.SetSudoPassword(true))
	_, errOut, code = sh.run("true")
	require.Equal(t, 1, code)
	require.Equal(t, "sudo: a password is required\n", errOut)
}

func testUpgrade(ctx context.Context, t *testing.T, s *Sandbox, cluster config.Cluster) {
	nodeOf := func(name string) *core.Node {
		n, err := s.Client().CoreV1().Nodes().Get(ctx, name, meta.GetOptions{})
		require.NoError(t, err)
		return n
	}
	for _, node := range []struct{ name, role, kubeadm string }{
		{"cp1", "first-control-plane", "kubeadm upgrade apply v1.37.2 -y"},
		{"w1", "worker", "kubeadm upgrade node"},
	} {
		sh := dial(t, cluster, node.name)
		out, code := sh.script("stage", node.role)
		require.Equal(t, 0, code, out)
		require.Equal(t, "v1.36.3", sh.must("kubeadm version -o short"), "staging installs nothing")
		require.NotContains(t, s.Machine(node.name).Commands(), node.kubeadm)

		require.NoError(t, s.Machine(node.name).FailScript(1))
		out, code = sh.script("upgrade", node.role)
		require.Equal(t, 1, code, out)
		require.Contains(t, out, "[ERROR ")
		require.Equal(t, "v1.36.3", nodeOf(node.name).Status.NodeInfo.KubeletVersion)
		require.NoError(t, s.Machine(node.name).HealScript())

		out, code = sh.script("upgrade", node.role)
		require.Equal(t, 0, code, out)
		n := nodeOf(node.name)
		require.Equal(t, "v1.37.2", n.Status.NodeInfo.KubeletVersion)
		require.False(t, kubecluster.NodeReady(n), "a kubelet that has just started is not ready")
		require.NoError(t, waitFor(ctx, s.plane.ended, s.Client().CoreV1().Nodes(), node.name, kubecluster.NodeReady))
		n = nodeOf(node.name)
		require.Equal(t, "v1.37.2", n.Status.NodeInfo.KubeletVersion)
		require.Equal(t, s.Machine(node.name).MachineID(), n.Status.NodeInfo.MachineID)
		runs := 0
		for _, command := range s.Machine(node.name).Commands() {
			if command == node.kubeadm {
				runs++
			}
		}
		require.Equal(t, 2, runs, "one that failed and one that did not")
	}
	config, err := s.Client().CoreV1().ConfigMaps("kube-system").Get(ctx, kubeadmConfigName, meta.GetOptions{})
	require.NoError(t, err)
	require.Contains(t, config.Data["ClusterConfiguration"], "\nkubernetesVersion: v1.37.2\n")
}

func testConnections(t *testing.T, s *Sandbox, cluster config.Cluster) {
	m := s.Machine("w2")
	sh := dial(t, cluster, "w2")
	session, err := sh.client.NewSession()
	require.NoError(t, err)
	require.NoError(t, session.Start("echo started > mark; setsid sh -c 'until [ -e go ]; do sleep 0.05; done; echo done > mark' >/dev/null 2>&1 </dev/null & wait"))
	mark := filepath.Join(m.Home(), "mark")
	reads := func(want string) func() bool {
		return func() bool {
			data, err := os.ReadFile(mark)
			return err == nil && string(data) == want
		}
	}
	require.Eventually(t, reads("started\n"), 5*time.Second, 20*time.Millisecond)
	m.DropConnections()
	require.Error(t, sh.client.Wait())
	require.NoError(t, os.WriteFile(filepath.Join(m.Home(), "go"), nil, 0o600))
	require.Eventually(t, reads("done\n"), 5*time.Second, 20*time.Millisecond, "what is detached lives on")

	require.NoError(t, m.SetReachable(false))
	_, err = login(cluster, "w2")
	require.ErrorContains(t, err, "connection refused")
	require.NoError(t, m.SetReachable(true))
	dial(t, cluster, "w2").must("true")

	require.NoError(t, m.RotateHostKey())
	_, err = login(cluster, "w2")
	var mismatch *knownhosts.KeyError
	require.ErrorAs(t, err, &mismatch)
	require.Len(t, mismatch.Want, 1)

	cluster.SSH.User = "root"
	_, err = login(cluster, "w1")
	require.ErrorContains(t, err, "unable to authenticate")
}

func testRestart(ctx context.Context, t *testing.T, s *Sandbox) {
	done := make(chan error, 1)
	go func() { done <- s.RestartAPIServer(ctx, time.Second) }()
	require.Eventually(t, func() bool {
		_, err := s.Nodes(ctx)
		return err != nil
	}, 10*time.Second, 20*time.Millisecond, "it is down for a while")
	require.NoError(t, <-done)
	nodes, err := s.Nodes(ctx)
	require.NoError(t, err)
	require.Len(t, nodes, 4)
	for _, n := range nodes {
		require.True(t, kubecluster.NodeReady(&n), n.Name)
	}
}

func testPower(ctx context.Context, t *testing.T, s *Sandbox, cluster config.Cluster) {
	provider, err := infra.New(cluster.Infrastructure)
	require.NoError(t, err)
	machine := infra.Machine{Cluster: "demo", Node: "w1", MachineID: s.Machine("w1").MachineID()}
	state := func() infra.State {
		got, err := provider.State(ctx, machine)
		require.NoError(t, err)
		return got
	}
	require.Equal(t, infra.Running, state())
	require.NoError(t, s.Machine("w1").SetPower(ctx, false))
	require.Equal(t, infra.Stopped, state())
	n, err := s.Client().CoreV1().Nodes().Get(ctx, "w1", meta.GetOptions{})
	require.NoError(t, err)
	require.False(t, kubecluster.NodeReady(n))
	_, err = login(cluster, "w1")
	require.Error(t, err)
	require.NoError(t, s.Machine("w1").SetPower(ctx, true))
	require.NoError(t, waitFor(ctx, s.plane.ended, s.Client().CoreV1().Nodes(), "w1", readyAndUntainted))
	require.Equal(t, infra.Running, state())
}

func testDestroy(ctx context.Context, t *testing.T, s *Sandbox, cluster config.Cluster) {
	sh := dial(t, cluster, "w3")
	provider, err := infra.New(cluster.Infrastructure)
	require.NoError(t, err)
	machine := infra.Machine{Cluster: "demo", Node: "w3", MachineID: strings.Repeat("f", 32)}
	require.NoError(t, provider.Destroy(ctx, machine))
	require.False(t, s.Machine("w3").Destroyed(), "another machine was meant")
	machine.MachineID = s.Machine("w3").MachineID()
	for range 2 {
		require.NoError(t, provider.Destroy(ctx, machine))
	}
	require.True(t, s.Machine("w3").Destroyed())
	got, err := provider.State(ctx, machine)
	require.NoError(t, err)
	require.Equal(t, infra.Gone, got)
	require.Error(t, sh.client.Wait(), "its connections are cut")
	_, err = login(cluster, "w3")
	require.Error(t, err)
}

func testStop(t *testing.T, s *Sandbox, cluster config.Cluster) {
	sh := dial(t, cluster, "w1")
	pid, err := strconv.Atoi(sh.must("setsid sleep 300 >/dev/null 2>&1 </dev/null & echo $!"))
	require.NoError(t, err)
	require.True(t, alive(pid))
	s.Stop()
	s.Stop()
	for _, p := range s.plane.processes() {
		require.NotNil(t, p.cmd.ProcessState, p.name)
	}
	require.Eventually(t, func() bool { return !alive(pid) }, 5*time.Second, 50*time.Millisecond)
	require.Error(t, s.RestartAPIServer(t.Context(), 0))
}
