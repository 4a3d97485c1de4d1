package nodetools

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// network and dashboard are what the ISO of a version brings for the cluster.
const (
	networkManifest = `apiVersion: v1
kind: ServiceAccount
metadata: {name: sandbox-network, namespace: kube-system}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: sandbox-network, namespace: kube-system}
spec:
  selector: {matchLabels: {k8s-app: sandbox-network}}
  template:
    metadata: {labels: {k8s-app: sandbox-network}}
    spec:
      hostNetwork: true
      priorityClassName: system-node-critical
      containers: [{name: network, image: "example.com/network:v%s"}]
      tolerations: [{operator: Exists}]
`
	dashboardManifest = `apiVersion: apps/v1
kind: Deployment
metadata: {name: sandbox-dashboard, namespace: kube-system}
spec:
  replicas: 1
  selector: {matchLabels: {k8s-app: sandbox-dashboard}}
  template:
    metadata: {labels: {k8s-app: sandbox-dashboard}}
    spec:
      containers: [{name: dashboard, image: "example.com/dashboard:v%s"}]
`
)

// NetworkManifest returns the network that clusters of a version run.
func NetworkManifest(version string) []byte { return fmt.Appendf(nil, networkManifest, version) }

// WriteISO writes what the binaries ISO of CloudStack's Kubernetes service holds for a
// version into a directory. program is that of LayOutCKS.
func WriteISO(dir, version, program string) error {
	// Not to be executed, as on the real one.
	if err := writeKubernetes(filepath.Join(dir, "k8s"), version, program, 0o644); err != nil {
		return err
	}
	for name, content := range map[string]string{
		"docker/kube-proxy:v" + version + ".tar": "an image of " + version,
		"docker/pause:3.11.tar":                  "an image",
		"network.yaml":                           fmt.Sprintf(networkManifest, version),
		"dashboard.yaml":                         fmt.Sprintf(dashboardManifest, version),
		"provider.yaml":                          "# of " + version + "\n",
		"autoscaler.yaml":                        "# of " + version + "\n",
		"kubelet.service":                        "[Service]\nExecStart=/opt/bin/kubelet\n",
		"10-kubeadm.conf":                        "[Service]\nExecStart=\nExecStart=/opt/bin/kubelet $KUBELET_KUBECONFIG_ARGS\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { // #nosec G301 -- as on the real one
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil { // #nosec G306 -- as on the real one
			return err
		}
	}
	return errors.Join(
		writeArchive(filepath.Join(dir, "cni", "cni-plugins-amd64.tgz"), "bridge", version),
		writeArchive(filepath.Join(dir, "cri-tools", "crictl-linux-amd64.tar.gz"), "crictl", version))
}

// writeArchive writes a compressed archive with one program that says its version.
func writeArchive(path, program, version string) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { // #nosec G301 -- as on the real one
		return err
	}
	file, err := os.Create(path) // #nosec G304 -- below the caller's own directory
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	packed := gzip.NewWriter(file)
	archive := tar.NewWriter(packed)
	text := "#!/bin/sh\necho " + version + "\n"
	err = archive.WriteHeader(&tar.Header{Name: "./" + program, Mode: 0o755, Size: int64(len(text)), Uid: 1001, Gid: 127})
	if err == nil {
		_, err = strings.NewReader(text).WriteTo(archive)
	}
	return errors.Join(err, archive.Close(), packed.Close())
}
