package cluster

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/config"
)

func writeTokenKubeconfig(t *testing.T, path, server, token string) {
	t.Helper()
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"main",
"clusters":[{"name":"c","cluster":{"server":%q,"insecure-skip-tls-verify":true}}],"users":[{"name":"u","user":{"token":%q}}],
"contexts":[{"name":"main","context":{"cluster":"c","user":"u"}}]}`, server, token)
	next := path + ".next"
	require.NoError(t, os.WriteFile(next, []byte(text), 0o600))
	require.NoError(t, os.Rename(next, path))
}

// apiServer accepts one token.
func apiServer(t *testing.T, token string) *httptest.Server {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if req.Header.Get("Authorization") != "Bearer "+token {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Unauthorized","code":401}`)
			return
		}
		_, _ = fmt.Fprint(w, `{"kind":"NodeList","apiVersion":"v1","items":[]}`)
	}))
	t.Cleanup(server.Close)
	return server
}

func TestClientFollowsTheCredentialsInTheKubeconfig(t *testing.T) {
	server, kubeconfig := apiServer(t, "second"), filepath.Join(t.TempDir(), "kubeconfig")
	writeTokenKubeconfig(t, kubeconfig, server.URL, "first")
	client, err := NewClient(config.Cluster{Name: "prod", Kubeconfig: kubeconfig})
	require.NoError(t, err)
	list := func() error {
		_, err := client.CoreV1().Nodes().List(t.Context(), meta.ListOptions{})
		return err
	}
	require.True(t, apierrors.IsUnauthorized(list()), "expired")

	writeTokenKubeconfig(t, kubeconfig, server.URL, "second")
	require.NoError(t, list(), "replaced, and the client is the same")
	require.NoError(t, os.WriteFile(kubeconfig, []byte("apiVersion: v1\nclu"), 0o600))
	require.NoError(t, list(), "half written")
	require.NoError(t, os.Remove(kubeconfig))
	require.NoError(t, list(), "away")
	writeTokenKubeconfig(t, kubeconfig, "https://127.0.0.1:1", "second")
	require.NoError(t, list(), "of another API server: for the registry to notice")
}

func TestKubeconfigThatIsBeingReplacedIsNoFaultOfTheConfiguration(t *testing.T) {
	r, _, kubeconfig := testRegistry(t)
	first, err := r.Get(t.Context(), "prod")
	require.NoError(t, err)
	for _, broken := range []func() error{
		func() error { return os.WriteFile(kubeconfig, []byte("apiVersion: v1\nclu"), 0o600) },
		func() error { return os.Remove(kubeconfig) },
	} {
		require.NoError(t, broken())
		again, err := r.Get(t.Context(), "prod")
		require.NoError(t, err)
		require.Same(t, first, again, "the last credentials stay in use")

		started := NewRegistry(r.file, zap.NewNop()) // of a worker that starts in that moment
		_, err = started.Get(t.Context(), "prod")
		require.ErrorContains(t, err, kubeconfig)
		var faulty *ConfigError
		require.NotErrorAs(t, err, &faulty, "it may come back")
	}
}
