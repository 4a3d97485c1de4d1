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
	"ebb/internal/ops"
	"ebb/tests/lab/lab"
	"ebb/workflows"
)

// One cluster, one upgrade with kubeadm-apt, everything that goes wrong on its way.
func TestUpgradeOfARealCluster(t *testing.T) {
	b := newBed(t, config.ScriptKubeadmApt, "cp1", "w1", "w2")
	ok := true
	for _, part := range []struct {
		name string
		run  func(*testing.T, *bed)
	}{
		{"WrongHostKeyIsRefused", wrongHostKey},
		{"WrongMachineBehindAnAddressIsRefused", wrongMachine},
		{"SudoThatWantsAPasswordIsRefused", sudoPassword},
		{"UpgradeGoesThrough", upgrade},
		{"ScaleDownStopsTheMachine", scaleDown},
	} {
		// Each goes on with the cluster that the one before has left.
		ok = ok && t.Run(part.name, func(t *testing.T) { part.run(t, b) })
	}
}

// refused starts an upgrade that must be refused, for a reason, before anything
// ran on any node.
func (b *bed) refused(t *testing.T, id string, reasons ...string) {
	t.Helper()
	code, output := ended(t, b.ebb(t, id, "upgrade", clusterName, "--to", lab.To), patience)
	require.Equal(t, 3, code, output)
	for _, reason := range reasons {
		require.Contains(t, output, reason)
	}
	b.state(t, clusterstate.Running, "")
	b.nodesAt(t, lab.From, b.names...)
	for _, name := range b.names {
		require.Empty(t, b.runs(t, name), "runs on %s", name)
		require.Equal(t, "kubeadm kubectl kubelet", strings.Join(strings.Fields(b.on(t, name, "apt-mark showhold")), " "), "packages held on %s", name)
	}
}

// runs are the runs that systemd on a machine has started for Ebb: its journal
// has a line for each.
func (b *bed) runs(t *testing.T, name string) []string {
	t.Helper()
	var runs []string
	for line := range strings.Lines(b.on(t, name, "journalctl --no-pager --output=cat _PID=1")) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "Started ebb-") {
			runs = append(runs, line[strings.LastIndexByte(line, '/')+1:len(line)-1])
		}
	}
	return runs
}

// ran checks what has been run on a machine: a stage and an upgrade for each operation.
func (b *bed) ran(t *testing.T, name string, operations ...string) {
	t.Helper()
	node, err := b.kube.CoreV1().Nodes().Get(t.Context(), name, meta.GetOptions{})
	require.NoError(t, err)
	var want []string
	for _, id := range operations {
		for _, phase := range []string{"stage", "upgrade"} {
			want = append(want, fmt.Sprintf("%s-%s-%s-1", id, node.UID, phase))
		}
	}
	require.Equal(t, want, b.runs(t, name), "runs on %s", name)
}

func wrongHostKey(t *testing.T, b *bed) {
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

	b.refused(t, "wrong-host-key", "node w1", "host key")
}

func wrongMachine(t *testing.T, b *bed) {
	swapped := b.config
	swapped.Addressing = config.Addressing{Mode: config.AddressForwarded, PublicAddress: lab.Gateway, Rules: []config.ForwardingRule{
		{Node: "cp1", Port: b.machine(t, "cp1").ForwardedPort()},
		{Node: "w1", Port: b.machine(t, "w2").ForwardedPort()},
		{Node: "w2", Port: b.machine(t, "w1").ForwardedPort()},
	}}
	b.write(t, swapped)
	defer b.write(t, b.config)

	b.refused(t, "wrong-machine", "node w1: the address leads to another machine", "node w2: the address leads to another machine")
}

func sudoPassword(t *testing.T, b *bed) {
	w2 := b.machine(t, "w2")
	require.NoError(t, w2.Write(t.Context(), lab.SudoersFile, strings.Replace(lab.Sudoers, "NOPASSWD: ", "", 1)))
	defer func() { require.NoError(t, w2.Write(context.Background(), lab.SudoersFile, lab.Sudoers)) }()

	b.refused(t, "sudo-password", "node w2: commands cannot be run as root", "password")
}

// upgrade takes the cluster to the new version while the workload is asked all
// the time. On the way the worker is killed, a machine is cut off, and a disk is full.
func upgrade(t *testing.T, b *bed) {
	p := b.probe(t, "cp1", "w1", "w2")
	kubelets := b.kubelets(t)
	b.holdPackages(t, "w1")

	first := b.ebb(t, "first", "upgrade", clusterName, "--to", lab.To)
	b.killWorkerDuringApply(t)
	b.cutOffDuringScript(t, "first", "w1", p)
	b.diskFull(t, "first", "w2")

	code, output := ended(t, first, patience)
	require.Equal(t, 1, code, output)
	for _, part := range []string{"node w2", "step script", "No space left on device", "2 of 3 nodes are at " + lab.To, "state Alert"} {
		require.Contains(t, output, part)
	}
	b.state(t, clusterstate.Alert, lab.To)
	b.ran(t, "cp1", "first")
	b.ran(t, "w1", "first")
	b.ran(t, "w2", "first")

	b.on(t, "w2", "rm /filler")
	code, output = ended(t, b.ebb(t, "second", "upgrade", clusterName, "--to", lab.To, "--output", "json"), patience)
	require.Equal(t, 0, code, output)
	op, err := b.ops.Get(t.Context(), "second")
	require.NoError(t, err)
	require.JSONEq(t, `{"version":"`+lab.To+`","upgraded":["w2"],"skipped":["cp1","w1"]}`, string(op.Result))

	b.state(t, clusterstate.Running, "")
	b.nodesAt(t, lab.To, b.names...)
	b.ran(t, "cp1", "first")
	b.ran(t, "w1", "first")
	b.ran(t, "w2", "first", "second")
	b.applied(t, "cp1")
	b.restarted(t, kubelets)
	b.whole(t)
	p.verify(t)
}

// kubelets are the kubelets that run now, by machine: systemd gives a service
// another invocation ID whenever it is started.
func (b *bed) kubelets(t *testing.T) map[string]string {
	t.Helper()
	running := map[string]string{}
	for _, name := range b.names {
		running[name] = strings.TrimSpace(b.on(t, name, "systemctl is-active --quiet kubelet && systemctl show --property=InvocationID --value kubelet"))
		require.NotEmpty(t, running[name], name)
	}
	return running
}

// restarted checks that the kubelet of every machine is another one than before.
func (b *bed) restarted(t *testing.T, before map[string]string) {
	t.Helper()
	for name, now := range b.kubelets(t) {
		require.NotEqual(t, before[name], now, "the kubelet of %s was not restarted", name)
	}
}

// applied checks that kubeadm upgrade apply has gone through exactly once on a machine.
func (b *bed) applied(t *testing.T, name string) {
	t.Helper()
	require.Equal(t, "1", strings.TrimSpace(b.on(t, name, "cat /var/lib/ebb/runs/*/output | grep -c '^\\[upgrade\\] SUCCESS! A control plane node'")), "%s", name)
}

// killWorkerDuringApply kills Ebb's worker in the middle of kubeadm upgrade apply
// and starts another one.
func (b *bed) killWorkerDuringApply(t *testing.T) {
	t.Helper()
	const find = "pgrep -f '^kubeadm upgrade apply' || true"
	output := "cat /var/lib/ebb/runs/first-*-upgrade-1/output 2>/dev/null || true"
	eventually(t, "kubeadm upgrade apply replaces a component", func(context.Context) (bool, error) {
		return strings.Contains(b.on(t, "cp1", output), "Waiting for the kubelet to restart the component"), nil
	})
	before := b.on(t, "cp1", find)
	require.NotEmpty(t, before)
	require.NoError(t, b.worker.Kill())
	said := b.on(t, "cp1", output)
	eventually(t, "kubeadm goes on without a worker", func(context.Context) (bool, error) {
		return len(b.on(t, "cp1", output)) > len(said), nil
	})
	require.Equal(t, before, b.on(t, "cp1", find), "it is still the same kubeadm")
	b.startWorker(t)
}

// holdPackages makes the installation of packages on a machine wait, as a slow
// disk would, until it is let go.
func (b *bed) holdPackages(t *testing.T, name string) {
	t.Helper()
	require.NoError(t, b.machine(t, name).Write(t.Context(), "/etc/apt/apt.conf.d/99hold",
		`DPkg::Pre-Invoke { "touch /run/held; while [ ! -e /run/go ]; do sleep 0.2; done"; };`+"\n"))
}

// cutOff is how long a machine is cut off: longer than SSH's keepalives (three
// of 5 s) take to notice.
const cutOff = 30 * time.Second

// cutOffDuringScript takes the network of a machine away while its script runs.
func (b *bed) cutOffDuringScript(t *testing.T, id, name string, p *prober) {
	t.Helper()
	m := b.machine(t, name)
	eventually(t, "packages are being installed on "+name, func(context.Context) (bool, error) {
		return strings.TrimSpace(b.on(t, name, "ls /run/held 2>/dev/null || true")) != "", nil
	})
	// The process group of the run, if it is still there.
	group := "set -- $(cat /var/lib/ebb/runs/" + id + "-*-upgrade-1/pid); kill -0 -$1; echo $1"
	before := b.on(t, name, group)
	p.leave(name)
	require.NoError(t, m.Cut(t.Context()))
	select {
	case <-time.After(cutOff):
	case <-t.Context().Done():
	}
	require.NoError(t, m.Mend(t.Context()))
	require.Equal(t, before, b.on(t, name, group), "the same script runs on")
	eventually(t, "the Service answers on "+name+" again", func(ctx context.Context) (bool, error) {
		err := request(ctx, fmt.Sprintf("http://%s:%d/", m.Address(), nodePort))
		return err == nil, err
	})
	p.come(name)
	log, err := os.ReadFile(b.log)
	require.NoError(t, err)
	require.Contains(t, string(log), "connection to the script lost, attaching again", "Ebb has noticed")
	b.on(t, name, "touch /run/go")
	b.inPhase(t, id, name, workflows.Done)
}

// diskFull fills the disk of a machine before its script runs, so far that no
// package can be unpacked.
func (b *bed) diskFull(t *testing.T, id, name string) {
	t.Helper()
	b.inPhase(t, id, name, workflows.Cordoning, workflows.Cordoned, workflows.DrainPhase, workflows.Drained)
	b.on(t, name, "fallocate --length $(( ($(df --output=avail --block-size=1 / | tail -n 1)) - 30 * 1024 * 1024 )) /filler")
}

func scaleDown(t *testing.T, b *bed) {
	p := b.probe(t, "cp1", "w1")
	code, output := ended(t, b.ebb(t, "shrink", "scale-down", clusterName, "--nodes", "w2"), patience)
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
	b.state(t, clusterstate.Running, "")
	b.nodesAt(t, lab.To, "cp1", "w1")
	b.whole(t)
	p.verify(t)
}
