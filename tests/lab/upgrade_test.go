package labtest

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/clusterstate"
	"ebb/internal/config"
	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/tests/lab/lab"
)

// One cluster, one upgrade with kubeadm-apt, everything that goes wrong on its way.
func TestUpgradeOfARealCluster(t *testing.T) {
	b := newEnvironment(t, config.ScriptKubeadmApt, "cp1", "w1", "w2")
	ok := true
	for _, part := range []struct {
		name string
		run  func(*testing.T, *environment)
	}{
		{"WrongHostKeyIsRefused", testWrongHostKey},
		{"WrongMachineBehindAnAddressIsRefused", testWrongMachine},
		{"SudoThatWantsAPasswordIsRefused", testSudoPassword},
		{"UpgradeGoesThrough", testUpgrade},
		{"ScaleDownStopsTheMachine", testScaleDown},
	} {
		// Each goes on with the cluster that the one before has left.
		ok = ok && t.Run(part.name, func(t *testing.T) { part.run(t, b) })
	}
}

// requireRefused starts an upgrade that must be refused, for a reason, before anything
// ran on any node.
func (b *environment) requireRefused(t *testing.T, id string, reasons ...string) {
	t.Helper()
	code, output := waitForExit(t, b.startCLI(t, id, "upgrade", clusterName, "--to", lab.To), waitTimeout)
	require.Equal(t, 3, code, output)
	for _, reason := range reasons {
		require.Contains(t, output, reason)
	}
	b.requireState(t, clusterstate.Running, "")
	b.requireNodesAt(t, lab.From, b.machineNames...)
	for _, name := range b.machineNames {
		require.Empty(t, b.startedRuns(t, name), "runs on %s", name)
		require.Equal(t, "kubeadm kubectl kubelet", strings.Join(strings.Fields(b.runOn(t, name, "apt-mark showhold")), " "), "packages held on %s", name)
	}
}

// startedRuns returns the runs that systemd on a machine has started for Ebb: its journal
// has a line for each.
func (b *environment) startedRuns(t *testing.T, name string) []string {
	t.Helper()
	var runs []string
	for line := range strings.Lines(b.runOn(t, name, "journalctl --no-pager --output=cat _PID=1")) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "Started ebb-") {
			runs = append(runs, line[strings.LastIndexByte(line, '/')+1:len(line)-1])
		}
	}
	return runs
}

// requireRuns checks what has been run on a machine: a stage and an upgrade for each operation.
func (b *environment) requireRuns(t *testing.T, name string, operations ...string) {
	t.Helper()
	node, err := b.kube.CoreV1().Nodes().Get(t.Context(), name, meta.GetOptions{})
	require.NoError(t, err)
	var want []string
	for _, id := range operations {
		for _, phase := range []string{"stage", "upgrade"} {
			want = append(want, fmt.Sprintf("%s-%s-%s-1", id, node.UID, phase))
		}
	}
	require.Equal(t, want, b.startedRuns(t, name), "runs on %s", name)
}

func testWrongHostKey(t *testing.T, b *environment) {
	known, err := os.ReadFile(b.config.SSH.KnownHosts)
	require.NoError(t, err)
	w1 := b.machine(t, "w1")
	right, err := w1.HostKeys()
	require.NoError(t, err)
	key, err := lab.NewKey()
	require.NoError(t, err)
	wrong := strings.Replace(string(known), right, lab.KnownHost(w1, key), 1)
	require.NotEqual(t, string(known), wrong)
	require.NoError(t, os.WriteFile(b.config.SSH.KnownHosts, []byte(wrong), 0o600))
	defer func() { require.NoError(t, os.WriteFile(b.config.SSH.KnownHosts, known, 0o600)) }()

	b.requireRefused(t, "wrong-host-key", "node w1", "host key")
}

func testWrongMachine(t *testing.T, b *environment) {
	swapped := b.config
	swapped.Addressing = config.Addressing{Mode: config.AddressForwarded, PublicAddress: lab.Gateway, Rules: []config.ForwardingRule{
		{Node: "cp1", Port: b.machine(t, "cp1").ForwardedPort()},
		{Node: "w1", Port: b.machine(t, "w2").ForwardedPort()},
		{Node: "w2", Port: b.machine(t, "w1").ForwardedPort()},
	}}
	b.writeConfig(t, swapped)
	defer b.writeConfig(t, b.config)

	b.requireRefused(t, "wrong-machine", "node w1: the address leads to another machine", "node w2: the address leads to another machine")
}

func testSudoPassword(t *testing.T, b *environment) {
	w2 := b.machine(t, "w2")
	require.NoError(t, w2.Write(t.Context(), lab.SudoersFile, strings.Replace(lab.Sudoers, "NOPASSWD: ", "", 1)))
	defer func() { require.NoError(t, w2.Write(context.Background(), lab.SudoersFile, lab.Sudoers)) }()

	b.requireRefused(t, "sudo-password", "node w2: commands cannot be run as root", "password")
}

// testUpgrade takes the cluster to the new version while the workload is asked all
// the time. On the way the worker is killed, a machine is cut off, and a disk is full.
func testUpgrade(t *testing.T, b *environment) {
	p := b.startProber(t, "cp1", "w1", "w2")
	kubelets := b.kubeletInvocations(t)
	b.delayPackages(t, "w1")

	first := b.startCLI(t, "first", "upgrade", clusterName, "--to", lab.To)
	b.killWorkerDuringApply(t)
	b.linkDownDuringScript(t, "first", "w1", p)
	b.fillDisk(t, "first", "w2")

	code, output := waitForExit(t, first, waitTimeout)
	require.Equal(t, 1, code, output)
	for _, part := range []string{"node w2", "step script", "No space left on device", "2 of 3 nodes are at " + lab.To, "state Alert"} {
		require.Contains(t, output, part)
	}
	b.requireState(t, clusterstate.Alert, lab.To)
	b.requireRuns(t, "cp1", "first")
	b.requireRuns(t, "w1", "first")
	b.requireRuns(t, "w2", "first")

	b.runOn(t, "w2", "rm /filler")
	code, output = waitForExit(t, b.startCLI(t, "second", "upgrade", clusterName, "--to", lab.To, "--output", "json"), waitTimeout)
	require.Equal(t, 0, code, output)
	op, err := b.ops.Get(t.Context(), "second")
	require.NoError(t, err)
	require.JSONEq(t, `{"version":"`+lab.To+`","upgraded":["w2"],"skipped":["cp1","w1"]}`, string(op.Result))

	b.requireState(t, clusterstate.Running, "")
	b.requireNodesAt(t, lab.To, b.machineNames...)
	b.requireRuns(t, "cp1", "first")
	b.requireRuns(t, "w1", "first")
	b.requireRuns(t, "w2", "first", "second")
	b.requireAppliedOnce(t, "cp1")
	b.requireKubeletsRestarted(t, kubelets)
	b.waitForWorkload(t)
	p.requireNoFailure(t)
}

// kubeletInvocations returns the kubelets that run now, by machine: systemd gives a service
// another invocation ID whenever it is started.
func (b *environment) kubeletInvocations(t *testing.T) map[string]string {
	t.Helper()
	running := map[string]string{}
	for _, name := range b.machineNames {
		running[name] = strings.TrimSpace(b.runOn(t, name, "systemctl is-active --quiet kubelet && systemctl show --property=InvocationID --value kubelet"))
		require.NotEmpty(t, running[name], name)
	}
	return running
}

// requireKubeletsRestarted checks that the kubelet of every machine is another one than before.
func (b *environment) requireKubeletsRestarted(t *testing.T, before map[string]string) {
	t.Helper()
	for name, now := range b.kubeletInvocations(t) {
		require.NotEqual(t, before[name], now, "the kubelet of %s was not restarted", name)
	}
}

// requireAppliedOnce checks that kubeadm upgrade apply has gone through exactly once on a machine.
func (b *environment) requireAppliedOnce(t *testing.T, name string) {
	t.Helper()
	require.Equal(t, "1", strings.TrimSpace(b.runOn(t, name, "cat /var/lib/ebb/runs/*/output | grep -c '^\\[upgrade\\] SUCCESS! A control plane node'")), "%s", name)
}

// killWorkerDuringApply kills Ebb's worker in the middle of kubeadm upgrade apply
// and starts another one.
func (b *environment) killWorkerDuringApply(t *testing.T) {
	t.Helper()
	const find = "pgrep -f '^kubeadm upgrade apply' || true"
	output := "cat /var/lib/ebb/runs/first-*-upgrade-1/output 2>/dev/null || true"
	eventually(t, "kubeadm upgrade apply replaces a component", func(context.Context) (bool, error) {
		return strings.Contains(b.runOn(t, "cp1", output), "Waiting for the kubelet to restart the component"), nil
	})
	before := b.runOn(t, "cp1", find)
	require.NotEmpty(t, before)
	require.NoError(t, b.worker.Kill())
	said := b.runOn(t, "cp1", output)
	eventually(t, "kubeadm goes on without a worker", func(context.Context) (bool, error) {
		return len(b.runOn(t, "cp1", output)) > len(said), nil
	})
	require.Equal(t, before, b.runOn(t, "cp1", find), "it is still the same kubeadm")
	b.startWorker(t)
}

// delayPackages makes the installation of packages on a machine wait, as a slow
// disk would, until it is let go.
func (b *environment) delayPackages(t *testing.T, name string) {
	t.Helper()
	require.NoError(t, b.machine(t, name).Write(t.Context(), "/etc/apt/apt.conf.d/99hold",
		`DPkg::Pre-Invoke { "touch /run/held; while [ ! -e /run/go ]; do sleep 0.2; done"; };`+"\n"))
}

// linkDownFor is how long a machine has no network: longer than SSH takes to notice (three
// keepalives of 5 s).
const linkDownFor = 30 * time.Second

// linkDownDuringScript takes the network of a machine away while its script runs.
func (b *environment) linkDownDuringScript(t *testing.T, id, name string, p *prober) {
	t.Helper()
	m := b.machine(t, name)
	eventually(t, "packages are being installed on "+name, func(context.Context) (bool, error) {
		return strings.TrimSpace(b.runOn(t, name, "ls /run/held 2>/dev/null || true")) != "", nil
	})
	// The process group of the run, if it is still there.
	group := "set -- $(cat /var/lib/ebb/runs/" + id + "-*-upgrade-1/pid); kill -0 -$1; echo $1"
	before := b.runOn(t, name, group)
	p.pause(name)
	require.NoError(t, m.LinkDown(t.Context()))
	select {
	case <-time.After(linkDownFor):
	case <-t.Context().Done():
	}
	require.NoError(t, m.LinkUp(t.Context()))
	require.Equal(t, before, b.runOn(t, name, group), "the same script runs on")
	eventually(t, "the Service answers on "+name+" again", func(ctx context.Context) (bool, error) {
		err := getHello(ctx, fmt.Sprintf("http://%s:%d/", m.Address(), nodePort))
		return err == nil, err
	})
	p.resume(name)
	log, err := os.ReadFile(b.workerLog)
	require.NoError(t, err)
	require.Contains(t, string(log), "connection to the script lost, attaching again", "Ebb has noticed")
	b.runOn(t, name, "touch /run/go")
	b.waitForPhase(t, id, name, operation.PhaseDone)
}

// fillDisk fills the disk of a machine before its script runs, so far that no
// package can be unpacked.
func (b *environment) fillDisk(t *testing.T, id, name string) {
	t.Helper()
	b.waitForPhase(t, id, name, operation.PhaseCordoning, operation.PhaseCordoned, operation.PhaseDraining, operation.PhaseDrained)
	b.runOn(t, name, "fallocate --length $(( ($(df --output=avail --block-size=1 / | tail -n 1)) - 30 * 1024 * 1024 )) /filler")
}

func testScaleDown(t *testing.T, b *environment) {
	p := b.startProber(t, "cp1", "w1")
	code, output := waitForExit(t, b.startCLI(t, "shrink", "scale-down", clusterName, "--nodes", "w2"), waitTimeout)
	require.Equal(t, 0, code, output)
	op, err := b.ops.Get(t.Context(), "shrink")
	require.NoError(t, err)
	require.Equal(t, ops.Done, op.State)
	require.JSONEq(t, `{"removed":["w2"],"destroyed":["w2"],"size":2}`, string(op.Result))

	_, err = b.kube.CoreV1().Nodes().Get(t.Context(), "w2", meta.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	w2 := b.machine(t, "w2")
	require.False(t, w2.Running(), "the machine is off")
	require.False(t, w2.Exists(), "the machine is gone")
	b.requireState(t, clusterstate.Running, "")
	b.requireNodesAt(t, lab.To, "cp1", "w1")
	b.waitForWorkload(t)
	p.requireNoFailure(t)
}
