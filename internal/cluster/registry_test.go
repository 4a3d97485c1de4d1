package cluster

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"ebb/internal/config"
)

func writeKubeconfig(t *testing.T, path, server string) {
	t.Helper()
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"main",
"clusters":[{"name":"c","cluster":{"server":%q}}],"users":[{"name":"u","user":{}}],
"contexts":[{"name":"main","context":{"cluster":"c","user":"u"}}]}`, server)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

func writeConfig(t *testing.T, path, kubeconfig, extra string) {
	t.Helper()
	text := "clusters:\n  - name: prod\n    kubeconfig: " + kubeconfig + "\n" + extra
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

func testRegistry(t *testing.T) (r *Registry, file, kubeconfig string) {
	t.Helper()
	dir := t.TempDir()
	file, kubeconfig = filepath.Join(dir, "ebb.yaml"), filepath.Join(dir, "prod.kubeconfig")
	writeKubeconfig(t, kubeconfig, "http://127.0.0.1:1")
	writeConfig(t, file, kubeconfig, "")
	opened, err := config.Open(file)
	require.NoError(t, err)
	r = NewRegistry(opened, zap.NewNop())
	t.Cleanup(r.Close)
	return r, file, kubeconfig
}

func TestRegistryKeepsOneClusterAndReadsSettingsAnew(t *testing.T) {
	r, file, kubeconfig := testRegistry(t)
	c, err := r.Get(t.Context(), "prod")
	require.NoError(t, err)
	settings, err := c.Settings()
	require.NoError(t, err)
	require.Equal(t, 300*time.Second, time.Duration(settings.Drain.Timeout))

	writeConfig(t, file, kubeconfig, "    drain: {timeout: 7s}\n")
	settings, err = c.Settings()
	require.NoError(t, err)
	require.Equal(t, 7*time.Second, time.Duration(settings.Drain.Timeout))
	again, err := r.Get(t.Context(), "prod")
	require.NoError(t, err)
	require.Same(t, c, again)
}

func TestRegistryConnectsAgainWhenTheKubeconfigChanges(t *testing.T) {
	r, file, kubeconfig := testRegistry(t)
	first, err := r.Get(t.Context(), "prod")
	require.NoError(t, err)

	writeKubeconfig(t, kubeconfig, "http://127.0.0.1:10001")
	second, err := r.Get(t.Context(), "prod")
	require.NoError(t, err)
	require.NotSame(t, first, second, "its content")

	moved := kubeconfig + ".moved"
	require.NoError(t, os.Rename(kubeconfig, moved))
	writeConfig(t, file, moved, "")
	third, err := r.Get(t.Context(), "prod")
	require.NoError(t, err)
	require.NotSame(t, second, third, "its path")
}

func TestRegistryErrors(t *testing.T) {
	r, file, kubeconfig := testRegistry(t)
	_, err := r.Get(t.Context(), "prdo")
	require.ErrorContains(t, err, "prod")
	writeConfig(t, file, kubeconfig, "    context: other\n")
	_, err = r.Get(t.Context(), "prod")
	require.ErrorContains(t, err, "other")
	require.NoError(t, os.Remove(kubeconfig))
	_, err = r.Get(t.Context(), "prod")
	require.ErrorContains(t, err, kubeconfig)
}

func TestWatchSaysWhatIsMissing(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no such user", http.StatusUnauthorized)
	}))
	defer server.Close()
	r, _, kubeconfig := testRegistry(t)
	writeKubeconfig(t, kubeconfig, server.URL)
	c, err := r.Get(t.Context(), "prod")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err = c.Watch(ctx)
	require.ErrorContains(t, err, "watch cluster prod: no answer yet for pods, poddisruptionbudgets, nodes")
	require.ErrorContains(t, err, "provide credentials")
}

func TestRequestsAreBoundedAndWatchesAreNot(t *testing.T) {
	deadlines := map[string]bool{}
	record := roundTripper(func(req *http.Request) (*http.Response, error) {
		_, deadlines[req.URL.RawQuery] = req.Context().Deadline()
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
	})
	for _, query := range []string{"", "watch=true", "limit=5", "watch=1"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x/?"+query, nil)
		require.NoError(t, err)
		resp, err := timeoutTransport{record}.RoundTrip(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
	}
	require.Equal(t, map[string]bool{"": true, "limit=5": true, "watch=true": false, "watch=1": false}, deadlines)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func TestSubscriptionsHearOfTheirNode(t *testing.T) {
	client := fake.NewClientset(&core.Node{ObjectMeta: meta.ObjectMeta{Name: "w1"}})
	c := New("test", client, nil, zap.NewNop())
	defer c.Close()
	w, err := c.Watch(t.Context())
	require.NoError(t, err)
	require.NotNil(t, w.Node("w1"))
	mine, other := w.Subscribe("w1"), w.Subscribe("w2")
	defer mine.Close()
	drainWakes(mine, other)

	pod := &core.Pod{ObjectMeta: meta.ObjectMeta{Namespace: "app", Name: "a"}, Spec: core.PodSpec{
		NodeName: "w1", Containers: []core.Container{{Name: "c", Image: "i", Command: []string{"x"}}}}}
	_, err = client.CoreV1().Pods("app").Create(t.Context(), pod, meta.CreateOptions{})
	require.NoError(t, err)
	select {
	case <-mine.C:
	case <-time.After(10 * time.Second):
		t.Fatal("no wake-up")
	}
	require.Empty(t, other.C)
	require.Len(t, w.PodsOn("w1"), 1)
	require.Empty(t, w.PodsOn("w1")[0].Spec.Containers[0].Image, "not needed, not kept")

	_, err = client.CoreV1().Namespaces().Create(t.Context(), &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: "n"}}, meta.CreateOptions{})
	require.NoError(t, err)
	for _, s := range []*Subscription{mine, other} {
		select {
		case <-s.C:
		case <-time.After(10 * time.Second):
			t.Fatal("a namespace concerns everybody")
		}
	}
}

func TestRetiredWatchEndsWithItsLastSubscriber(t *testing.T) {
	c := New("test", fake.NewClientset(), nil, zap.NewNop())
	w, err := c.Watch(t.Context())
	require.NoError(t, err)
	s := w.Subscribe("w1")
	c.retire()
	require.False(t, w.stopped())
	s.Close()
	require.True(t, w.stopped())

	anew, err := c.Watch(t.Context())
	require.NoError(t, err)
	require.NotSame(t, w, anew, "whoever still holds the cluster gets a live watch")
	anew.Subscribe("w1").Close()
	require.True(t, anew.stopped())
}

// drainWakes takes what the first lists have left.
func drainWakes(subscriptions ...*Subscription) {
	for _, s := range subscriptions {
		select {
		case <-s.C:
		case <-time.After(100 * time.Millisecond):
		}
	}
}
