package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// artifact is something that is built once and again when what it is made of
// changes.
type artifact struct {
	name   string   // of its stamp
	inputs []string // files and texts that it is made of; nil = it is made each time
	build  func(context.Context) error
}

// Build builds everything that machines are made of, as far as it is not there.
func (l *Lab) Build(ctx context.Context) error {
	if err := l.checkDiskSpace(ctx); err != nil {
		return err
	}
	if err := l.installHostPackages(ctx); err != nil {
		return err
	}
	products := append(l.programArtifacts(), l.baseArtifact(), l.packagesArtifact(From), l.packagesArtifact(To), l.imagesArtifact(), l.diskArtifact())
	for _, p := range products {
		if err := l.buildIfStale(ctx, p); err != nil {
			return fmt.Errorf("build %s: %w", p.name, err)
		}
	}
	return nil
}

// requiredKiB is the room in KiB that the disk of .bin must have: 4 GiB are what is built,
// 7 GiB the disks of four machines after an upgrade, 1 GiB the tests beside them.
const requiredKiB = 12 << 20

// checkDiskSpace returns an error when the disk would fill up before the lab is through.
// What has been built already needs no more room.
func (l *Lab) checkDiskSpace(ctx context.Context) error {
	if err := os.MkdirAll(l.cache, 0o750); err != nil {
		return err
	}
	var free, built int
	for kib, script := range map[*int]string{
		&free:  `df --output=avail -k "$0" | tail -n 1`,
		&built: `du -s -k "$0"`,
	} {
		out, err := command(ctx, "sh", "-c", script, l.cache)
		if err != nil {
			return err
		}
		if _, err := fmt.Sscan(out, kib); err != nil {
			return fmt.Errorf("%s says %q: %w", script, out, err)
		}
	}
	if free+built < requiredKiB {
		return fmt.Errorf("the lab needs %d GiB on the disk of %s, and %d are free: make room (go clean -cache is often the most)",
			(requiredKiB-built)>>20, l.cache, free>>20)
	}
	return nil
}

// buildIfStale makes a product unless its stamp says that it is there and as it should be.
func (l *Lab) buildIfStale(ctx context.Context, p artifact) error {
	if p.inputs == nil {
		return p.build(ctx)
	}
	hash := sha256.New()
	for _, in := range p.inputs {
		if strings.HasPrefix(in, "/") {
			content, err := os.ReadFile(in) // #nosec G304 -- part of the source tree
			if err != nil {
				return err
			}
			in = string(content)
		}
		_, _ = fmt.Fprintf(hash, "%d:%s\n", len(in), in)
	}
	wanted, stamp := hex.EncodeToString(hash.Sum(nil)), l.stamp(p.name)
	if have, err := read(stamp); err == nil && have == wanted {
		return nil
	}
	defer l.step("building %s", p.name)()
	if err := os.RemoveAll(stamp); err != nil {
		return err
	}
	if err := p.build(ctx); err != nil {
		return err
	}
	return write(stamp, wanted, 0o600)
}

func (l *Lab) stamp(name string) string { return filepath.Join(l.cache, "stamps", name) }

// programArtifacts returns what is built from Go modules.
func (l *Lab) programArtifacts() []artifact {
	const cni = "github.com/containernetworking/plugins/plugins/"
	kubernetes := []string{"kubeadm", "kubelet", "kubectl", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy"}
	for i, name := range kubernetes {
		kubernetes[i] = "k8s.io/kubernetes/cmd/" + name
	}
	const etcd = "go.etcd.io/etcd/server/v3"
	return []artifact{
		l.goBuild("kubernetes-"+From, "tools/lab/previous", kubernetesFlags(From), l.Program(From)+"/", kubernetes...),
		l.goBuild("kubernetes-"+To, "tools/sandbox", kubernetesFlags(To), l.Program(To)+"/", kubernetes...),
		l.goBuild("etcd-of-"+From, "tools/lab/previous", "", l.Program(From, "etcd"), etcd),
		l.goBuild("etcd-of-"+To, "tools/sandbox", "", l.Program(To, "etcd"), etcd),
		l.goBuild("containerd", "tools/lab/containerd", "", l.Program()+"/", "github.com/containerd/containerd/v2/cmd/containerd",
			"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2", "github.com/containerd/containerd/v2/cmd/ctr"),
		l.goBuild("cni-plugins", "tools/lab/cni", "", l.Program("cni")+"/", cni+"main/bridge", cni+"main/loopback", cni+"ipam/host-local", cni+"meta/portmap"),
		l.goBuild("coredns", "tools/lab/coredns", "", l.Program("coredns"), "."),
		l.goBuild("pause", ".", "", l.Program("pause"), "./tests/lab/images/pause"),
		l.goBuild("hello", ".", "", l.Program("hello"), "./tests/lab/images/hello"),
		{name: "ebblab", build: l.goBuild("", ".", "", l.Program("ebblab"), "./tests/lab/ebblab").build},
	}
}

// kubernetesFlags let the programs report the version of their module, as a release does.
func kubernetesFlags(version string) string {
	const pkg = "-X k8s.io/component-base/version."
	minor := strings.Split(version, ".")[1]
	return pkg + "gitVersion=v" + version + " " + pkg + "gitMajor=1 " + pkg + "gitMinor=" + minor + " " + pkg + "gitTreeState=clean" +
		" -X k8s.io/client-go/pkg/version.gitVersion=v" + version
}

// goBuild builds packages of a module of the source tree. They are built again
// when the module's pins change, and those of Ebb itself whenever they do.
func (l *Lab) goBuild(name, module, flags, output string, packages ...string) artifact {
	dir := filepath.Join(l.repository, module)
	inputs := []string{filepath.Join(dir, "go.mod"), filepath.Join(dir, "go.sum"), flags, strings.Join(packages, " ")}
	for _, p := range packages {
		if strings.HasPrefix(p, ".") {
			inputs = append(inputs, filepath.Join(dir, p, "main.go"))
		}
	}
	return artifact{name: name, inputs: inputs, build: func(ctx context.Context) error {
		if err := os.MkdirAll(filepath.Dir(output), 0o750); err != nil {
			return err
		}
		args := append([]string{"build", "-ldflags", strings.TrimSpace("-s -w " + flags), "-o", output}, packages...)
		cmd := exec.CommandContext(ctx, "go", args...)                // #nosec G204 -- the packages above
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0") // GOFLAGS is the Makefile's, so that nothing is compiled twice
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go build in %s: %w: %s", module, err, ending(string(out)))
		}
		return nil
	}}
}
