package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/cluster"
	"ebb/internal/config"
	"ebb/internal/drain"
)

// wrongClock has the API server's clock be off, as its responses tell it.
type wrongClock struct {
	next http.RoundTripper
	off  time.Duration
}

func (c wrongClock) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := c.next.RoundTrip(req)
	if err == nil {
		resp.Header.Set("Date", time.Now().Add(c.off).UTC().Format(http.TimeFormat))
	}
	return resp, err
}

// byClock gives the fixture the cluster as a worker finds it in ebb.yaml, whose API server
// has a clock that is off.
func (b *fixture) byClock(off time.Duration) {
	b.t.Helper()
	path := filepath.Join(b.t.TempDir(), "ebb.yaml")
	require.NoError(b.t, os.WriteFile(path, fmt.Appendf(nil, "clusters:\n  - name: sandbox\n    kubeconfig: %s\n", b.box.Kubeconfig()), 0o600))
	file, err := config.Open(path)
	require.NoError(b.t, err)
	registry := cluster.NewRegistry(file, zap.NewNop(), func(next http.RoundTripper) http.RoundTripper { return wrongClock{next, off} })
	b.t.Cleanup(registry.Close)
	b.cluster, err = registry.Get(b.t.Context(), "sandbox")
	require.NoError(b.t, err)
}

// A pod that does not end is given up by the clock that says since when it terminates.
func TestGracePeriodsEndByTheClusterClock(t *testing.T) {
	b := newFixture(t)
	held := b.deploy("held", 1)[0]
	held.Finalizers = []string{"example.com/hold"}
	_, err := b.cluster.Client.CoreV1().Pods(b.namespace).Update(t.Context(), &held, meta.UpdateOptions{})
	require.NoError(t, err)
	down := func(r *drain.Request) {
		r.MachineDown, r.Settings.GracePeriod, r.Settings.SkipWaitForDelete = true, 1, time.Second
	}

	b.byClock(-time.Hour)
	_, err = b.start(8*time.Second, down).wait()
	require.ErrorIs(t, err, drain.ErrTimeout, "by that clock its grace period ends in an hour")
	require.ErrorContains(t, err, "of its grace period left")

	b.byClock(0)
	result, err := b.start(30*time.Second, down).wait()
	require.NoError(t, err)
	require.Equal(t, []string{b.namespace + "/" + held.Name}, result.Skipped)
}
