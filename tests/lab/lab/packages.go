package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Package repositories are shaped as those of the Kubernetes community: one per
// minor version, flat, below .../v1.NN/deb/.

func repositoryPath(version string) string {
	return "core:/stable:/v1." + strings.Split(version, ".")[1] + "/deb"
}

// packagesURL returns where a machine finds the packages of a version's minor.
func packagesURL(version string) string {
	return "http://" + packagesAddress + "/" + repositoryPath(version) + "/"
}

func (l *Lab) packagesDir() string { return filepath.Join(l.cache, "packages") }

// debPackage describes one of the packages: what is in it besides its program.
type debPackage struct {
	name, depends string
	files         map[string]string
}

var debPackages = []debPackage{
	{name: "kubeadm", depends: "kubelet", files: map[string]string{"usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf": "10-kubeadm.conf"}},
	{name: "kubelet", depends: "iptables, conntrack, ethtool, socat, util-linux, mount", files: map[string]string{"usr/lib/systemd/system/kubelet.service": "kubelet.service"}},
	{name: "kubectl"},
}

// packageVersion returns the version of a package, as the community writes it.
func packageVersion(version string) string { return version + "-1.1" }

// packagesArtifact returns the package repository of a version.
func (l *Lab) packagesArtifact(version string) artifact {
	inputs := []string{sourceFile("packages.go"), l.stamp("kubernetes-" + version), machineFile("kubelet.service"), machineFile("10-kubeadm.conf")}
	return artifact{name: "packages-" + version, inputs: inputs, build: func(ctx context.Context) error {
		dir := filepath.Join(l.packagesDir(), repositoryPath(version))
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		var index strings.Builder
		for _, d := range debPackages {
			stanza, err := l.buildDeb(ctx, d, version, dir)
			if err != nil {
				return err
			}
			index.WriteString(stanza + "\n")
		}
		if err := write(filepath.Join(dir, "Packages"), index.String(), 0o644); err != nil {
			return err
		}
		sum := sha256.Sum256([]byte(index.String()))
		return write(filepath.Join(dir, "Release"), fmt.Sprintf("Origin: lab\nLabel: lab\nDate: %s\nArchitectures: %s\nSHA256:\n %s %d Packages\n",
			time.Now().UTC().Format("Mon, 02 Jan 2006 15:04:05 UTC"), runtime.GOARCH, hex.EncodeToString(sum[:]), index.Len()), 0o644)
	}}
}

// buildDeb makes one package in dir and returns its entry of the index.
func (l *Lab) buildDeb(ctx context.Context, d debPackage, version, dir string) (string, error) {
	root, err := os.MkdirTemp(l.cache, "package-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(root) }()     // what is left of it is in .bin
	if err := os.Chmod(root, 0o755); err != nil { // #nosec G302 -- it becomes / of the machine
		return "", err
	}
	control := fmt.Sprintf("Package: %s\nVersion: %s\nArchitecture: %s\nMaintainer: The lab <lab@ebb.invalid>\nDescription: %s of the lab\n",
		d.name, packageVersion(version), runtime.GOARCH, d.name)
	if d.depends != "" {
		control += "Depends: " + d.depends + "\n"
	}
	if err := write(filepath.Join(root, "DEBIAN/control"), control, 0o644); err != nil {
		return "", err
	}
	for path, name := range d.files {
		if err := write(filepath.Join(root, path), machineFile(name), 0o644); err != nil {
			return "", err
		}
	}
	if d.name == "kubelet" {
		if err := os.MkdirAll(filepath.Join(root, "etc/kubernetes/manifests"), 0o755); err != nil { // #nosec G301 -- as in the real package
			return "", err
		}
	}
	if err := copyPrograms(filepath.Join(root, "usr/bin"), l.Program(version, d.name)); err != nil {
		return "", err
	}
	name := fmt.Sprintf("%s_%s_%s.deb", d.name, packageVersion(version), runtime.GOARCH)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	deb := filepath.Join(dir, name)
	// Not compressed: it is read more often than it is stored.
	if _, err := command(ctx, "dpkg-deb", "-Znone", "--root-owner-group", "--build", root, deb); err != nil {
		return "", err
	}
	size, sum, err := sizeAndSHA256(deb)
	return fmt.Sprintf("%sFilename: ./%s\nSize: %d\nSHA256: %s\n", control, name, size, sum), err
}

// sizeAndSHA256 returns the size and the SHA-256 of a file.
func sizeAndSHA256(path string) (int64, string, error) {
	f, err := os.Open(path) // #nosec G304 -- of the lab's own making
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = f.Close() }() // only read from
	hash := sha256.New()
	size, err := io.Copy(hash, f)
	return size, hex.EncodeToString(hash.Sum(nil)), err
}
