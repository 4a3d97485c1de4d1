package lab

import (
	"context"
	"embed"
	"os"
	"path/filepath"
	"strings"
)

// What machines get, and the code that makes it: when that changes, it is made again.
//
//go:embed machine base.go disk.go packages.go images.go oci.go
var files embed.FS

// sourceFile returns the text of one of the lab's own source files.
func sourceFile(name string) string { return embeddedFile(name) }

// machineFile returns a file of a machine that is shipped with the lab.
func machineFile(name string) string {
	return embeddedFile("machine/" + name)
}

func embeddedFile(name string) string {
	content, err := files.ReadFile(name)
	if err != nil {
		panic(err) // it is not in the source tree: nothing works
	}
	return string(content)
}

// debianRelease is Debian's, of the machines.
const debianRelease = "bookworm"

// basePackages are the Debian packages of a machine, beyond the essential ones.
var basePackages = strings.Join([]string{
	"systemd", "systemd-sysv", "dbus", "openssh-server", "sudo", "procps", "util-linux", "mount", "kmod", "ca-certificates", "curl",
	"iproute2", "iputils-ping", "iptables", "nftables", "conntrack", "socat", "ethtool", "runc", "libseccomp2",
}, ",")

func (l *Lab) baseDir() string { return filepath.Join(l.cache, "base") }

// baseArtifact returns the file system of Debian itself.
func (l *Lab) baseArtifact() artifact {
	return artifact{name: "base", inputs: []string{debianRelease, basePackages}, build: func(ctx context.Context) error {
		if err := os.RemoveAll(l.baseDir()); err != nil {
			return err
		}
		args := []string{"--variant=minbase", "--include=" + basePackages, debianRelease, l.baseDir()}
		if mirror := debianMirror(ctx); mirror != "" {
			args = append(args, mirror)
		}
		_, err := command(ctx, "debootstrap", args...)
		return err
	}}
}

// debianMirror returns where this host gets its own Debian packages from; "" = not known.
func debianMirror(ctx context.Context) string {
	uris, err := command(ctx, "apt-get", "indextargets", "--format", "$(ORIGIN) $(RELEASE) $(REPO_URI)", "Created-By: Packages")
	if err != nil {
		return "" // debootstrap has a default
	}
	for line := range strings.Lines(uris) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "Debian" && fields[1] == debianRelease {
			return fields[2]
		}
	}
	return ""
}
