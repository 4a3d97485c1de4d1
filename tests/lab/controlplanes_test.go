package labtest

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/clusterstate"
	"ebb/internal/config"
	"ebb/internal/operation"
	"ebb/tests/lab/lab"
)

// Two control planes with etcd on both, upgraded with kubeadm-bundle.
func TestUpgradeOfTwoControlPlanes(t *testing.T) {
	b := newEnvironment(t, config.ScriptKubeadmBundle, "cp1", "cp2", "w1", "w2")
	if t.Run("ControlPlaneThatIsDownIsRefused", func(t *testing.T) { testControlPlaneDown(t, b) }) {
		t.Run("SecondWaitsForEtcd", func(t *testing.T) { testSecondWaitsForEtcd(t, b) })
	}
}

func (b *environment) waitForReadyCondition(t *testing.T, node string, ready core.ConditionStatus) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s: Ready is %s", node, ready), func(ctx context.Context) (bool, error) {
		n, err := b.kube.CoreV1().Nodes().Get(ctx, node, meta.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == core.NodeReady {
				return c.Status == ready, nil
			}
		}
		return false, nil
	})
}

func testControlPlaneDown(t *testing.T, b *environment) {
	b.runOn(t, "cp2", "systemctl stop kubelet")
	b.waitForReadyCondition(t, "cp2", core.ConditionUnknown)

	code, output := waitForExit(t, b.startCLI(t, "down", "upgrade", clusterName, "--to", lab.To), waitTimeout)

	require.Equal(t, 3, code, output)
	require.Contains(t, output, "control plane cp2 is not Ready")
	for _, name := range b.machineNames {
		require.Empty(t, b.startedRuns(t, name), "runs on %s", name)
	}
	b.requireState(t, clusterstate.Running, "")
	b.runOn(t, "cp2", "systemctl start kubelet")
	b.waitForReadyCondition(t, "cp2", core.ConditionTrue)
}

// testSecondWaitsForEtcd freezes the first control plane's etcd after its upgrade:
// the second must be left alone until etcd has been well for a while.
func testSecondWaitsForEtcd(t *testing.T, b *environment) {
	served, err := os.Stat(testLab.Path("logs", "serve.log"))
	require.NoError(t, err)
	p := b.startProber(t, "cp1", "w1", "w2")
	watch := b.probeEtcd(t, "cp1", "cp2")
	kubelets := b.kubeletInvocations(t)

	command := b.startCLI(t, "both", "upgrade", clusterName, "--to", lab.To)
	b.waitForPhase(t, "both", "cp1", operation.PhaseWaitingForReady)
	b.runOn(t, "cp1", "pkill -STOP -x etcd")
	thaw := sync.OnceFunc(func() { b.runOn(t, "cp1", "pkill -CONT -x etcd") })
	defer thaw()
	require.Empty(t, b.cp2UpgradeStart(t))
	select {
	case <-time.After(etcdFrozenFor):
	case <-t.Context().Done():
	}
	require.Empty(t, b.cp2UpgradeStart(t), "cp2 was touched while etcd was down")
	thaw()

	eventually(t, "cp2 is upgraded", func(context.Context) (bool, error) { return b.cp2UpgradeStart(t) != "", nil })
	watch.requireHealthyBefore(t, b.cp2UpgradeStart(t))

	code, output := waitForExit(t, command, 3*waitTimeout)
	require.Equal(t, 0, code, output)
	b.requireState(t, clusterstate.Running, "")
	b.requireNodesAt(t, lab.To, b.machineNames...)
	for _, name := range b.machineNames {
		b.requireRuns(t, name, "both")
	}
	b.requireAppliedOnce(t, "cp1")
	b.requireKubeletsRestarted(t, kubelets)
	require.Zero(t, strings.Count(b.runOn(t, "cp2", "cat /var/lib/ebb/runs/*/output"), "upgrade/apply"), "apply is for the first")
	b.waitForWorkload(t)
	p.requireNoFailure(t)
	log, err := os.ReadFile(testLab.Path("logs", "serve.log"))
	require.NoError(t, err)
	require.NotContains(t, string(log[served.Size():]), "manifests/v"+lab.To, "every image was in the bundle")
}

// etcdFrozenFor is how long etcd is stopped; etcdHealthyFor is how long it must have been
// healthy again before cp2 is upgraded.
const (
	etcdFrozenFor  = 15 * time.Second
	etcdHealthyFor = 10 * time.Second
)

// cp2UpgradeStart returns when the upgrade script of cp2 was started; "" = it was not.
func (b *environment) cp2UpgradeStart(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(b.runOn(t, "cp2", `for f in /var/lib/ebb/runs/*-upgrade-1/started; do [ -e "$f" ] && stat --format=%Y "$f"; done; true`))
}

// etcdProber remembers when etcd was not well on some machine.
type etcdProber struct {
	mu            sync.Mutex
	lastUnhealthy time.Time // when a member was last seen unwell
	checks        int       // looks
}

// probeEtcd asks each member for its health, past the API server, until the test is over.
func (b *environment) probeEtcd(t *testing.T, names ...string) *etcdProber {
	t.Helper()
	w := &etcdProber{}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	t.Cleanup(func() { cancel(); done.Wait() })
	for _, name := range names {
		m := b.machine(t, name)
		done.Go(func() {
			for ctx.Err() == nil {
				_, err := m.Run(ctx, "curl --silent --fail --max-time 2 http://127.0.0.1:2381/health?serializable=false | grep -q true; sleep 0.5")
				w.mu.Lock()
				w.checks++
				if err != nil {
					w.lastUnhealthy = time.Now()
				}
				w.mu.Unlock()
			}
		})
	}
	return w
}

// requireHealthyBefore checks that every member was well for some time before a moment,
// in seconds since 1970.
func (w *etcdProber) requireHealthyBefore(t *testing.T, moment string) {
	t.Helper()
	var seconds int64
	_, err := fmt.Sscan(moment, &seconds)
	require.NoError(t, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	require.NotZero(t, w.checks)
	require.False(t, w.lastUnhealthy.IsZero(), "the freeze was not seen")
	require.Greater(t, time.Unix(seconds, 0).Sub(w.lastUnhealthy), etcdHealthyFor, "etcd was not well for long enough before cp2 was upgraded")
}
