package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
)

// EtcdMember is what the files of a control plane say of the etcd on it, as kubeadm writes them.
type EtcdMember struct {
	Address              string // host:port of its client port
	CA, Certificate, Key []byte // PEM; of the client of its health check
}

// SetEtcd has this control plane be one with an etcd of its own. The sandbox has its own
// etcd elsewhere, and asks this one for nothing.
func (m *Machine) SetEtcd(e EtcdMember) error {
	pki := filepath.Join(m.dir.Kubernetes(), "pki", "etcd")
	manifest := fmt.Sprintf("    - --advertise-client-urls=https://%s\n    - --trusted-ca-file=%s\n", e.Address, filepath.Join(pki, "ca.crt"))
	for _, dir := range []string{pki, filepath.Join(m.dir.Kubernetes(), "manifests")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("etcd of machine %s: %w", m.name, err)
		}
	}
	for name, body := range map[string][]byte{
		filepath.Join(m.dir.Kubernetes(), "manifests", "etcd.yaml"): []byte(manifest),
		filepath.Join(pki, "ca.crt"):                                e.CA,
		filepath.Join(pki, "healthcheck-client.crt"):                e.Certificate,
		filepath.Join(pki, "healthcheck-client.key"):                e.Key,
	} {
		if err := os.WriteFile(name, body, 0o600); err != nil {
			return fmt.Errorf("etcd of machine %s: %w", m.name, err)
		}
	}
	return nil
}
