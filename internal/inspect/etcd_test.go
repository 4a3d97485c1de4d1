package inspect

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"ebb/internal/etcd"
)

// onControlPlane runs etcdScript as on a control plane whose files are below dir.
func onControlPlane(t *testing.T, dir string) (output string, ok bool) {
	t.Helper()
	t.Setenv("EBB_KUBERNETES_DIR", dir)
	body, err := exec.CommandContext(t.Context(), "sh", "-c", etcdScript).Output()
	return string(body), err == nil
}

func TestEtcdIsFoundThroughItsManifest(t *testing.T) {
	dir := t.TempDir()
	pki := filepath.Join(dir, "own pki", "etcd") // kubeadm's certificatesDir may be anywhere
	for name, body := range map[string]string{
		filepath.Join(dir, "manifests", "etcd.yaml"): "    - --advertise-client-urls=https://10.0.0.4:2379\n    - --trusted-ca-file=" + pki + "/ca.crt\n",
		filepath.Join(pki, "ca.crt"):                 "the CA\n", filepath.Join(pki, "healthcheck-client.crt"): "the certificate\n",
		filepath.Join(pki, "healthcheck-client.key"): strings.Repeat("the key\n", 40), // longer than a line of base64
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
		require.NoError(t, os.WriteFile(name, []byte(body), 0o600))
	}
	output, ok := onControlPlane(t, dir)
	require.True(t, ok)
	access, err := etcdAccess("sudo: unable to resolve host cp1\n" + output)
	require.NoError(t, err)
	require.Equal(t, etcd.ClientConfig{
		Address: "10.0.0.4:2379", CA: []byte("the CA\n"), Certificate: []byte("the certificate\n"), Key: []byte(strings.Repeat("the key\n", 40)),
	}, access)

	require.NoError(t, os.Remove(filepath.Join(pki, "healthcheck-client.key")))
	output, _ = onControlPlane(t, dir)
	_, err = etcdAccess(output)
	require.EqualError(t, err, "no key")
}

func TestControlPlaneWithoutEtcdOfItsOwn(t *testing.T) {
	output, ok := onControlPlane(t, t.TempDir())
	require.True(t, ok)
	access, err := etcdAccess(output)
	require.NoError(t, err)
	require.Empty(t, access.Address)
}
