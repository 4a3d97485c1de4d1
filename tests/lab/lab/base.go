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

// source is the text of one of the lab's own source files.
func source(name string) string { return embedded(name) }

// file is a file of a machine that is shipped with the lab.
func file(name string) string {
	return embedded("machine/" + name)
}

func embedded(name string) string {
	content, err := files.ReadFile(name)
	if err != nil {
		panic(err) // it is not in the source tree: nothing works
	}
	return string(content)
}

// release is Debian's, of the machines.
const release = "bookworm"

// installed are the Debian packages of a machine, beyond the essential ones.
var installed = strings.Join([]string{
	"systemd", "systemd-sysv", "dbus", "openssh-server", "sudo", "procps", "util-linux", "mount", "kmod", "ca-certificates", "curl",
	"iproute2", "iputils-ping", "iptables", "nftables", "conntrack", "socat", "ethtool", "runc", "libseccomp2",
}, ",")

func (l *Lab) baseDir() string { return filepath.Join(l.cache, "base") }

// base is the file system of Debian itself.
func (l *Lab) base() product {
	return product{name: "base", inputs: []string{release, installed}, make: func(ctx context.Context) error {
		if err := os.RemoveAll(l.baseDir()); err != nil {
			return err
		}
		args := []string{"--variant=minbase", "--include=" + installed, release, l.baseDir()}
		if mirror := mirror(ctx); mirror != "" {
			args = append(args, mirror)
		}
		_, err := command(ctx, "debootstrap", args...)
		return err
	}}
}

// mirror is where this host gets its own Debian packages from; "" = not known.
func mirror(ctx context.Context) string {
	uris, err := command(ctx, "apt-get", "indextargets", "--format", "$(ORIGIN) $(RELEASE) $(REPO_URI)", "Created-By: Packages")
	if err != nil {
		return "" // debootstrap has a default
	}
	for line := range strings.Lines(uris) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "Debian" && fields[1] == release {
			return fields[2]
		}
	}
	return ""
}
