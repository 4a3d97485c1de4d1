package labtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authentication "k8s.io/api/authentication/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"ebb/deployments"
	"ebb/internal/clusterstate"
	"ebb/internal/config"
	"ebb/internal/embedded"
	"ebb/internal/engine"
	"ebb/internal/lease"
	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/internal/testbed"
	"ebb/internal/version"
	"ebb/tests/lab/lab"
)

// clusterName is what the cluster is called in ebb.yaml.
const clusterName = "lab"

// environment is a cluster of the lab with Ebb beside it: an engine and one worker.
type environment struct {
	t            *testing.T // of the whole pass: what is started in one of its parts outlives that
	dir          string
	machineNames []string
	config       config.Cluster // as ebb.yaml has it when nothing is wrong with it
	kube         kubernetes.Interface
	engine       *embedded.Server
	ops          ops.Client
	worker       *testbed.Process
	workerLog    string // of the worker, all of its lives
}

// newEnvironment makes a cluster out of fresh machines, with a workload, and starts Ebb.
// All of it is removed after the test, its logs kept when it has failed.
func newEnvironment(t *testing.T, script string, names ...string) *environment {
	t.Helper()
	if testLab == nil {
		t.Skip(skipReason)
	}
	b := &environment{t: t, dir: t.TempDir(), machineNames: names}
	b.workerLog = filepath.Join(b.dir, "worker.log")
	t.Cleanup(func() { b.destroy(t) })
	require.NoError(t, testLab.Boot(t.Context(), script == config.ScriptKubeadmBundle, names...))
	require.NoError(t, testLab.CreateCluster(t.Context(), names...))
	admin, err := clientcmd.BuildConfigFromFlags("", testLab.Kubeconfig())
	require.NoError(t, err)
	b.kube, err = kubernetes.NewForConfig(admin)
	require.NoError(t, err)
	b.deployWorkload(t)
	b.configure(t, script)
	b.startEngine(t)
	b.startWorker(t)
	return b
}

func (b *environment) destroy(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if dir := os.Getenv("EBB_LAB_LOGS"); t.Failed() && dir != "" {
		dir = filepath.Join(dir, t.Name())
		t.Log("logs of the machines and of Ebb:", dir)
		if err := testLab.Collect(ctx, dir); err != nil {
			t.Error(err)
		}
		if out, err := exec.CommandContext(ctx, "sh", "-c", `find "$0" -name '*.log' -exec cp -t "$1" {} +`, b.dir, dir).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
	for _, name := range b.machineNames {
		if err := b.machine(t, name).Destroy(ctx); err != nil {
			t.Error(err)
		}
	}
}

func (b *environment) machine(t *testing.T, name string) *lab.Machine {
	t.Helper()
	m, err := testLab.Machine(name)
	require.NoError(t, err)
	return m
}

// runOn runs a script on a machine, past SSH and the network.
func (b *environment) runOn(t *testing.T, name, script string) string {
	t.Helper()
	out, err := b.machine(t, name).Run(t.Context(), script)
	require.NoError(t, err)
	return out
}

// configure gives the worker its rights, and writes ebb.yaml.
func (b *environment) configure(t *testing.T, script string) {
	t.Helper()
	require.NoError(t, testLab.KubectlInput(t.Context(), string(deployments.Namespace)+"\n---\n"+string(deployments.RBAC), "apply", "-f", "-"))
	lifetime := int64(6 * 60 * 60) // seconds
	token, err := b.kube.CoreV1().ServiceAccounts(clusterstate.Namespace).CreateToken(t.Context(), "ebb-worker",
		&authentication.TokenRequest{Spec: authentication.TokenRequestSpec{ExpirationSeconds: &lifetime}}, meta.CreateOptions{})
	require.NoError(t, err)
	kubeconfig, err := clientcmd.LoadFromFile(testLab.Kubeconfig())
	require.NoError(t, err)
	for name := range kubeconfig.AuthInfos {
		kubeconfig.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	}
	b.config = config.Cluster{
		Name: clusterName, Kubeconfig: filepath.Join(b.dir, "kubeconfig"),
		SSH:        config.SSH{User: lab.User, Sudo: true, IdentityFile: testLab.Identity(), KnownHosts: filepath.Join(b.dir, "known_hosts")},
		Addressing: config.Addressing{Mode: config.AddressNode},
		Infrastructure: config.Infrastructure{
			Provider: config.InfraExec, Command: []string{testLab.Program("ebblab"), "provider", filepath.Join("..", "..")},
		},
		Upgrade: config.Upgrade{Script: script, KubeadmFlags: lab.KubeadmFlags},
	}
	b.config.Infrastructure.Command[2], err = filepath.Abs(b.config.Infrastructure.Command[2])
	require.NoError(t, err)
	require.NoError(t, clientcmd.WriteToFile(*kubeconfig, b.config.Kubeconfig))
	known := ""
	for _, name := range b.machineNames {
		line, err := b.machine(t, name).HostKeys()
		require.NoError(t, err)
		known += line
	}
	require.NoError(t, os.WriteFile(b.config.SSH.KnownHosts, []byte(known), 0o600))
	b.writeConfig(t, b.config)
}

func (b *environment) configPath() string { return filepath.Join(b.dir, "ebb.yaml") }

// writeConfig writes ebb.yaml; the worker reads it again.
func (b *environment) writeConfig(t *testing.T, cluster config.Cluster) {
	t.Helper()
	data, err := config.Marshal(&config.Config{Clusters: []config.Cluster{cluster}})
	require.NoError(t, err)
	fresh := b.configPath() + ".new"
	require.NoError(t, os.WriteFile(fresh, data, 0o600))
	require.NoError(t, os.Rename(fresh, b.configPath()))
}

func (b *environment) startEngine(t *testing.T) {
	t.Helper()
	log := newFileLogger(t, filepath.Join(b.dir, "engine.log"))
	server, err := embedded.Start(t.Context(), embedded.Options{Dir: filepath.Join(b.dir, "engine"), UIPort: -1, Log: log})
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	client, err := engine.Dial(t.Context(), log, engine.Options{Address: server.Address(), Namespace: server.Namespace()})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	b.engine, b.ops = server, ops.NewTemporal(client, server.Namespace())
}

// processEnv points a process of Ebb at this bed.
func (b *environment) processEnv() []string {
	return append(os.Environ(), "EBB_CONFIG="+b.configPath(), "TEMPORAL_ADDRESS="+b.engine.Address(), "TEMPORAL_NAMESPACE="+b.engine.Namespace())
}

func (b *environment) startWorker(t *testing.T) {
	t.Helper()
	binary, err := testbed.Binary("ebb-worker")
	require.NoError(t, err)
	worker, err := testbed.StartProcess(b.t.Context(), b.workerLog, b.processEnv(), binary)
	require.NoError(t, err)
	b.worker = worker
	b.t.Cleanup(func() { require.NoError(b.t, worker.Stop()) })
}

// startCLI starts the CLI; its output goes to <id>.log.
func (b *environment) startCLI(t *testing.T, id string, args ...string) *testbed.Process {
	t.Helper()
	binary, err := testbed.Binary("ebb")
	require.NoError(t, err)
	p, err := testbed.StartProcess(t.Context(), filepath.Join(b.dir, id+".log"), b.processEnv(), binary, append(args, "--id", id)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Stop()) })
	return p
}

// waitForExit waits for a command of the CLI and returns its exit code and output.
func waitForExit(t *testing.T, p *testbed.Process, within time.Duration) (code int, output string) {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(within):
		content, _ := os.ReadFile(p.Log)
		t.Fatalf("the command goes on after %s:\n%s", within, content)
	}
	content, err := os.ReadFile(p.Log)
	require.NoError(t, err)
	return p.ExitCode(), string(content)
}

// waitTimeout is how long a step of an upgrade may take: on two cores `kubeadm
// upgrade apply` takes three minutes when nothing else runs.
const waitTimeout = 10 * time.Minute

// eventually waits for a state that nothing announces.
func eventually(t *testing.T, what string, ask func(context.Context) (bool, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	var last error
	err := testbed.Poll(ctx, func() (bool, error) {
		yes, err := ask(ctx)
		last = err
		return yes && err == nil, nil
	})
	require.NoError(t, err, "%s: last error: %v", what, last)
}

// waitForPhase waits until a running operation says that a node is in a phase.
func (b *environment) waitForPhase(t *testing.T, id, node string, phases ...operation.Phase) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s: node %s %v", id, node, phases), func(ctx context.Context) (bool, error) {
		op, err := b.ops.Get(ctx, id)
		if err != nil || op.Status == nil {
			return false, err
		}
		if op.State.Over() {
			require.FailNow(t, "the operation is over", "%s: %s", op.State, op.Message)
		}
		return slices.ContainsFunc(op.Status.Nodes, func(n operation.NodeStatus) bool { return n.Node == node && slices.Contains(phases, n.Phase) }), nil
	})
}

// requireState checks the cluster's record: its state, target, and that nobody holds it.
func (b *environment) requireState(t *testing.T, want clusterstate.State, target string) {
	t.Helper()
	record, err := lease.NewStore(b.kube, time.Now).Get(t.Context())
	require.NoError(t, err)
	require.Equal(t, want, record.State)
	require.Equal(t, version.Version(target), record.Target)
	require.Empty(t, record.Holder)
}

// requireNodesAt checks that all nodes are there, Ready, schedulable, and report a version.
func (b *environment) requireNodesAt(t *testing.T, want string, names ...string) {
	t.Helper()
	list, err := b.kube.CoreV1().Nodes().List(t.Context(), meta.ListOptions{})
	require.NoError(t, err)
	var there []string
	for _, n := range list.Items {
		there = append(there, n.Name)
		require.Equal(t, "v"+want, n.Status.NodeInfo.KubeletVersion, n.Name)
		require.False(t, n.Spec.Unschedulable, n.Name)
		require.NotContains(t, n.Annotations, "ebb/cordoned-by", n.Name)
		require.True(t, slices.ContainsFunc(n.Status.Conditions, func(c core.NodeCondition) bool {
			return c.Type == core.NodeReady && c.Status == core.ConditionTrue
		}), "%s is not Ready", n.Name)
	}
	require.ElementsMatch(t, names, there)
}
