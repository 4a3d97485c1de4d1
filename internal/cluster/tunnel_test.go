package cluster

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/tunnel/tunneltest"
)

// With apiServer the API server is dialled through the tunnel, which can be turned on and off
// without a restart.
func TestAPIServerThroughTheTunnel(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprint(w, `{"kind":"NodeList","apiVersion":"v1","items":[{"metadata":{"name":"w1"}}]}`)
	}))
	t.Cleanup(api.Close)
	authority, err := tunneltest.NewAuthority(t.TempDir())
	require.NoError(t, err)
	certificate, key, err := authority.Issue("worker")
	require.NoError(t, err)
	proxy, err := authority.NewProxy(func(string, string) bool { return true })
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
	r, file, kubeconfig := testRegistry(t)
	writeKubeconfig(t, kubeconfig, api.URL)
	tunnel := fmt.Sprintf("    tunnel: {apiServer: %%t, address: %q, caFile: %s, certificateFile: %s, keyFile: %s}\n", proxy.Address(), authority.CAFile(), certificate, key)

	for _, on := range []bool{true, false, true} {
		writeConfig(t, file, kubeconfig, fmt.Sprintf(tunnel, on))
		before := len(proxy.Dialed())
		c, err := r.Get(t.Context(), "prod")
		require.NoError(t, err)
		nodes, err := c.Client.CoreV1().Nodes().List(t.Context(), meta.ListOptions{})
		require.NoError(t, err)
		require.Len(t, nodes.Items, 1)
		dialed := proxy.Dialed()[before:]
		if !on {
			require.Empty(t, dialed)
			continue
		}
		require.Equal(t, []string{"prod " + strings.TrimPrefix(api.URL, "http://")}, dialed)
	}
}
