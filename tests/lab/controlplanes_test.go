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
	"ebb/tests/lab/lab"
	"ebb/workflows"
)

// Two control planes with etcd on both, upgraded with kubeadm-bundle.
func TestUpgradeOfTwoControlPlanes(t *testing.T) {
	b := newBed(t, config.ScriptKubeadmBundle, "cp1", "cp2", "w1", "w2")
	if t.Run("ControlPlaneThatIsDownIsRefused", func(t *testing.T) { controlPlaneDown(t, b) }) {
		t.Run("SecondWaitsForEtcd", func(t *testing.T) { secondWaitsForEtcd(t, b) })
	}
}

func (b *bed) becomes(t *testing.T, node string, ready core.ConditionStatus) {
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

func controlPlaneDown(t *testing.T, b *bed) {
	b.on(t, "cp2", "systemctl stop kubelet")
	b.becomes(t, "cp2", core.ConditionUnknown)

	code, output := ended(t, b.ebb(t, "down", "upgrade", clusterName, "--to", lab.To), patience)

	require.Equal(t, 3, code, output)
	require.Contains(t, output, "control plane cp2 is not Ready")
	for _, name := range b.names {
		require.Empty(t, b.runs(t, name), "runs on %s", name)
	}
	b.state(t, clusterstate.Running, "")
	b.on(t, "cp2", "systemctl start kubelet")
	b.becomes(t, "cp2", core.ConditionTrue)
}

// secondWaitsForEtcd freezes the first control plane's etcd after its upgrade:
// the second must be left alone until etcd has been well for a while.
func secondWaitsForEtcd(t *testing.T, b *bed) {
	served, err := os.Stat(machines.Path("logs", "serve.log"))
	require.NoError(t, err)
	p := b.probe(t, "cp1", "w1", "w2")
	watch := b.watchEtcd(t, "cp1", "cp2")
	kubelets := b.kubelets(t)

	command := b.ebb(t, "both", "upgrade", clusterName, "--to", lab.To)
	b.inPhase(t, "both", "cp1", workflows.WaitReady)
	b.on(t, "cp1", "pkill -STOP -x etcd")
	thaw := sync.OnceFunc(func() { b.on(t, "cp1", "pkill -CONT -x etcd") })
	defer thaw()
	require.Empty(t, b.secondBegan(t))
	select {
	case <-time.After(frozen):
	case <-t.Context().Done():
	}
	require.Empty(t, b.secondBegan(t), "cp2 was touched while etcd was down")
	thaw()

	eventually(t, "cp2 is upgraded", func(context.Context) (bool, error) { return b.secondBegan(t) != "", nil })
	watch.wellBefore(t, b.secondBegan(t))

	code, output := ended(t, command, 3*patience)
	require.Equal(t, 0, code, output)
	b.state(t, clusterstate.Running, "")
	b.nodesAt(t, lab.To, b.names...)
	for _, name := range b.names {
		b.ran(t, name, "both")
	}
	b.applied(t, "cp1")
	b.restarted(t, kubelets)
	require.Zero(t, strings.Count(b.on(t, "cp2", "cat /var/lib/ebb/runs/*/output"), "upgrade/apply"), "apply is for the first")
	b.whole(t)
	p.verify(t)
	log, err := os.ReadFile(machines.Path("logs", "serve.log"))
	require.NoError(t, err)
	require.NotContains(t, string(log[served.Size():]), "manifests/v"+lab.To, "every image was in the bundle")
}

// frozen is how long etcd is down, and well how long it must have been well again.
const (
	frozen = 15 * time.Second
	well   = 10 * time.Second
)

// secondBegan is when the upgrade script of cp2 was started; "" = it was not.
func (b *bed) secondBegan(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(b.on(t, "cp2", `for f in /var/lib/ebb/runs/*-upgrade-1/started; do [ -e "$f" ] && stat --format=%Y "$f"; done; true`))
}

// etcdWatch remembers when etcd was not well on some machine.
type etcdWatch struct {
	mu   sync.Mutex
	last time.Time // when a member was last seen unwell
	seen int       // looks
}

// watchEtcd asks each member for its health, past the API server, until the test is over.
func (b *bed) watchEtcd(t *testing.T, names ...string) *etcdWatch {
	t.Helper()
	w := &etcdWatch{}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	t.Cleanup(func() { cancel(); done.Wait() })
	for _, name := range names {
		m := b.machine(t, name)
		done.Go(func() {
			for ctx.Err() == nil {
				_, err := m.Run(ctx, "curl --silent --fail --max-time 2 http://127.0.0.1:2381/health?serializable=false | grep -q true; sleep 0.5")
				w.mu.Lock()
				w.seen++
				if err != nil {
					w.last = time.Now()
				}
				w.mu.Unlock()
			}
		})
	}
	return w
}

// wellBefore checks that every member was well for some time before a moment,
// in seconds since 1970.
func (w *etcdWatch) wellBefore(t *testing.T, moment string) {
	t.Helper()
	var seconds int64
	_, err := fmt.Sscan(moment, &seconds)
	require.NoError(t, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	require.NotZero(t, w.seen)
	require.False(t, w.last.IsZero(), "the freeze was not seen")
	require.Greater(t, time.Unix(seconds, 0).Sub(w.last), well, "etcd was not well for long enough before cp2 was upgraded")
}
