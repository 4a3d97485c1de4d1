package cluster

import (
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/config"
)

// startingServer is an API server that forbids everything until it is ready: when
// /readyz has been requested more than readyAfter times.
type startingServer struct {
	readyAfter int32
	path       string
	refuses    bool // also when it is ready

	asked, refused atomic.Int32
	bodies         []string
}

func (s *startingServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	if strings.HasSuffix(r.URL.Path, "/readyz") {
		s.path = r.URL.Path
		if s.asked.Add(1) <= s.readyAfter {
			w.WriteHeader(http.StatusForbidden)
		}
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if s.refuses || s.asked.Load() <= s.readyAfter {
		s.refused.Add(1)
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`)
		return
	}
	s.bodies = append(s.bodies, string(body))
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"ebb-system"}}`)
}

func createNamespace(t *testing.T, s *startingServer, prefix string) error {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	writeKubeconfig(t, kubeconfig, server.URL+prefix)
	client, err := NewClient(config.Cluster{Name: "prod", Kubeconfig: kubeconfig})
	require.NoError(t, err)
	_, err = client.CoreV1().Namespaces().Create(t.Context(), &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: "ebb-system"}}, meta.CreateOptions{})
	return err
}

func TestRefusalOfAStartingServerIsTriedAgain(t *testing.T) {
	s := &startingServer{readyAfter: 1}
	require.NoError(t, createNamespace(t, s, ""))
	require.EqualValues(t, 2, s.refused.Load())
	require.Len(t, s.bodies, 1)
	require.Contains(t, s.bodies[0], "ebb-system")
}

func TestRefusalJustBeforeTheServerIsReadyIsTriedAgain(t *testing.T) {
	s := &startingServer{} // refuses until it is asked, and is ready then
	require.NoError(t, createNamespace(t, s, "/k8s/clusters/c-1"))
	require.EqualValues(t, 1, s.refused.Load())
	require.Equal(t, "/k8s/clusters/c-1/readyz", s.path)
	require.Contains(t, s.bodies[0], "ebb-system", "the body is sent again")
}

func TestRefusalOfAReadyServerStands(t *testing.T) {
	s := &startingServer{refuses: true}
	require.True(t, apierrors.IsForbidden(createNamespace(t, s, "")))
	require.EqualValues(t, 2, s.refused.Load())
}
