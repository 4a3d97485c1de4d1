package lab

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// HelloImage is the image of the lab's workload.
const HelloImage = "lab.invalid/hello:1"

// image is a container image of one layer.
type image struct {
	ref     string            // registry/name:tag
	program string            // path in the image of what it runs
	files   map[string]string // path in the image, path on the host
	links   map[string]string // path in the image, target
}

func (l *Lab) imagesDir() string { return filepath.Join(l.cache, "images") }

// Bundle returns the folder of the bundle that upgrades to To, as kubeadm-bundle wants it.
func (l *Lab) Bundle() string { return filepath.Join(l.cache, "bundle") }

// imagesArtifact returns the container images of both versions, in the registry's folder,
// and those of the second in a bundle as well.
func (l *Lab) imagesArtifact() artifact {
	inputs := []string{sourceFile("images.go"), sourceFile("oci.go"), l.stamp("base"), l.stamp("coredns"), l.stamp("pause"), l.stamp("hello")}
	for _, version := range []string{From, To} {
		inputs = append(inputs, l.stamp("kubernetes-"+version), l.stamp("etcd-of-"+version))
	}
	return artifact{name: "images", inputs: inputs, build: func(ctx context.Context) error {
		for _, dir := range []string{l.imagesDir(), l.Bundle()} {
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
		}
		refs := map[string]string{}
		for _, version := range []string{From, To} {
			images, err := l.imagesOf(ctx, version)
			if err != nil {
				return err
			}
			for _, i := range images {
				if refs[i.ref], err = l.store(i); err != nil {
					return fmt.Errorf("image %s: %w", i.ref, err)
				}
			}
			if version == To {
				if err := l.bundle(images, refs); err != nil {
					return err
				}
			}
		}
		index, err := json.MarshalIndent(refs, "", "  ")
		if err != nil {
			return err
		}
		return write(filepath.Join(l.imagesDir(), "refs.json"), string(index), 0o644)
	}}
}

// imagesOf returns the images that kubeadm of a version wants, and the workload's.
func (l *Lab) imagesOf(ctx context.Context, version string) ([]image, error) {
	list, err := command(ctx, l.Program(version, "kubeadm"), "config", "images", "list", "--kubernetes-version", "v"+version)
	if err != nil {
		return nil, err
	}
	images := []image{{ref: HelloImage, program: "/hello", files: map[string]string{"/hello": l.Program("hello")}}}
	for ref := range strings.FieldsSeq(list) {
		name := path.Base(ref[:strings.LastIndexByte(ref, ':')])
		i := image{ref: ref, program: "/usr/local/bin/" + name}
		switch name {
		case "pause", "coredns": // kubeadm names the program in /
			i.program = "/" + name
			i.files = map[string]string{i.program: l.Program(name)}
		default:
			i.files = map[string]string{i.program: l.Program(version, name)}
		}
		if name == "kube-proxy" {
			if err := l.addIptables(ctx, &i); err != nil {
				return nil, err
			}
		}
		images = append(images, i)
	}
	return images, nil
}

// addIptables gives an image the iptables of the machines, with its libraries.
func (l *Lab) addIptables(ctx context.Context, i *image) error {
	const program = "/usr/sbin/xtables-nft-multi"
	i.files[program] = filepath.Join(l.baseDir(), program)
	i.links = map[string]string{}
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			i.links["/usr/sbin/"+name+suffix] = "xtables-nft-multi"
		}
	}
	extensions, err := filepath.Glob(filepath.Join(l.baseDir(), "usr/lib/*/xtables/*.so"))
	if err != nil {
		return err
	}
	args := []string{l.baseDir(), "ldd", program}
	for _, extension := range extensions {
		inside := strings.TrimPrefix(extension, l.baseDir())
		i.files[inside] = extension
		args = append(args, inside)
	}
	libraries, err := command(ctx, "chroot", args...)
	if err != nil {
		return err
	}
	// Lines such as "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x...)", and the loader's without an arrow.
	for line := range strings.Lines(libraries) {
		for field := range strings.FieldsSeq(line) {
			if strings.HasPrefix(field, "/") && !strings.HasSuffix(field, ":") {
				i.files[field] = filepath.Join(l.baseDir(), field)
			}
		}
	}
	return nil
}

// bundle writes what kubeadm-bundle needs: the programs and one archive of images.
func (l *Lab) bundle(images []image, refs map[string]string) error {
	dir := filepath.Join(l.Bundle(), To)
	if err := copyPrograms(dir, l.Program(To, "kubeadm"), l.Program(To, "kubelet"), l.Program(To, "kubectl")); err != nil {
		return err
	}
	archived := map[string]string{}
	for _, i := range images {
		if i.ref != HelloImage {
			archived[i.ref] = refs[i.ref]
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "images"), 0o755); err != nil { // #nosec G301 -- seen by machines
		return err
	}
	return l.archive(filepath.Join(dir, "images", "kubernetes.tar"), archived)
}

// layer writes the one layer of an image.
func (i image) layer(w io.Writer) error {
	t := tar.NewWriter(w)
	made := map[string]bool{"/": true}
	var dir func(string) error
	dir = func(name string) error {
		if made[name] {
			return nil
		}
		made[name] = true
		if err := dir(path.Dir(name)); err != nil {
			return err
		}
		mode := int64(0o755)
		if name == "/tmp" {
			mode = 0o1777
		}
		return t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name[1:], Mode: mode})
	}
	if err := dir("/tmp"); err != nil {
		return err
	}
	for _, name := range sortedKeys(i.files) {
		if err := dir(path.Dir(name)); err != nil {
			return err
		}
		content, err := os.ReadFile(i.files[name]) // of at most some 100 MB
		if err != nil {
			return err
		}
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name[1:], Mode: 0o755, Size: int64(len(content))}); err != nil {
			return err
		}
		if _, err := io.Copy(t, bytes.NewReader(content)); err != nil {
			return err
		}
	}
	for _, name := range sortedKeys(i.links) {
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name[1:], Linkname: i.links[name], Mode: 0o777}); err != nil {
			return err
		}
	}
	return t.Close()
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
