package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maskedUnits are units that make no sense on a machine that shares its kernel.
var maskedUnits = []string{
	"systemd-udevd.service", "systemd-udevd-control.socket", "systemd-udevd-kernel.socket", "systemd-udev-trigger.service",
	"systemd-logind.service", "getty@.service", "console-getty.service", "systemd-sysctl.service", "systemd-modules-load.service",
	"systemd-timesyncd.service", "systemd-binfmt.service", "systemd-remount-fs.service", "systemd-random-seed.service",
	"proc-sys-fs-binfmt_misc.automount", "dev-hugepages.mount", "sys-kernel-debug.mount", "sys-kernel-tracing.mount",
	"sys-kernel-config.mount", "sys-fs-fuse-connections.mount",
	"apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "fstrim.timer", "e2scrub_all.timer", "e2scrub_reap.service",
}

// User is the user that Ebb logs in as. It may run everything with sudo, without a password.
const User = "ebb"

// SudoersFile is the file on a machine that gives User this right, and Sudoers its content.
const (
	SudoersFile = "/etc/sudoers.d/" + User
	Sudoers     = User + " ALL=(ALL:ALL) NOPASSWD: ALL\n"
)

// pauseImage keeps pods open: what kubeadm of both versions lists.
const pauseImage = "registry.k8s.io/pause:3.10.2"

// diskSize is the size of a machine's disk. Only what is written takes room on the host.
const diskSize = "8G"

func (l *Lab) diskImage() string { return filepath.Join(l.cache, "disk.img") }

// diskArtifact returns the disk that every machine starts from.
func (l *Lab) diskArtifact() artifact {
	inputs := []string{sourceFile("disk.go"), l.stamp("base"), l.stamp("containerd"), l.stamp("cni-plugins")}
	for _, f := range configFiles() {
		inputs = append(inputs, f.path, f.content)
	}
	return artifact{name: "disk", inputs: inputs, build: func(ctx context.Context) error {
		root, err := os.MkdirTemp(l.cache, "disk-")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(root) }() // what is left of it is in .bin
		if _, err := command(ctx, "cp", "-a", l.baseDir()+"/.", root); err != nil {
			return err
		}
		if err := l.provision(ctx, root); err != nil {
			return err
		}
		fresh := l.diskImage() + ".new"
		if err := os.RemoveAll(fresh); err != nil {
			return err
		}
		if _, err := command(ctx, "mkfs.ext4", "-q", "-m", "0", "-d", root, fresh, diskSize); err != nil {
			return err
		}
		return os.Rename(fresh, l.diskImage())
	}}
}

// provision turns a bare Debian into a machine of the lab.
func (l *Lab) provision(ctx context.Context, root string) error {
	for _, f := range configFiles() {
		if err := write(filepath.Join(root, f.path), f.content, f.mode); err != nil {
			return err
		}
	}
	for _, unit := range maskedUnits {
		if err := os.Symlink("/dev/null", filepath.Join(root, "etc/systemd/system", unit)); err != nil {
			return err
		}
	}
	if err := copyPrograms(filepath.Join(root, "usr/local/bin"), l.Program("containerd"), l.Program("containerd-shim-runc-v2"), l.Program("ctr")); err != nil {
		return err
	}
	plugins, err := filepath.Glob(l.Program("cni", "*"))
	if err != nil {
		return err
	}
	if err := copyPrograms(filepath.Join(root, "opt/cni/bin"), plugins...); err != nil {
		return err
	}
	for _, run := range [][]string{
		{"useradd", "--create-home", "--shell", "/bin/bash", User},
		{"systemctl", "--root=/", "--quiet", "enable", "ssh.service", "containerd.service"},
		{"sh", "-c", "apt-get clean; rm -f /etc/machine-id /etc/ssh/ssh_host_*"},
	} {
		if _, err := command(ctx, "chroot", slices.Concat([]string{root}, run)...); err != nil {
			return err
		}
	}
	return nil
}

type configFile struct {
	path, content string
	mode          os.FileMode
}

// configFiles returns the files that make a machine of the lab out of a Debian.
func configFiles() []configFile {
	hosts := "127.0.0.1 localhost\n"
	for i, name := range machineNames {
		hosts += fmt.Sprintf("%s %s\n", machineAddress(i+1), name)
	}
	registry := "http://" + registryAddress
	return []configFile{
		{"etc/hosts", hosts, 0o644},
		{"etc/resolv.conf", "nameserver " + Gateway + "\n", 0o644}, // nobody answers: there are no names but those above
		{"etc/fstab", "", 0o644},
		{SudoersFile[1:], Sudoers, 0o440},
		{"etc/ssh/sshd_config.d/lab.conf", "PasswordAuthentication no\nHostKey /etc/ssh/ssh_host_ed25519_key\nAuthorizedKeysFile /etc/ssh/authorized_keys\n", 0o644},
		{"etc/systemd/journald.conf.d/lab.conf", "[Journal]\nStorage=volatile\nReadKMsg=no\nRateLimitIntervalSec=0\n", 0o644},
		{"etc/systemd/system/containerd.service", machineFile("containerd.service"), 0o644},
		{"etc/containerd/config.toml", strings.Replace(machineFile("containerd.toml"), "PAUSE_IMAGE", pauseImage, 1), 0o644},
		{"etc/containerd/certs.d/_default/hosts.toml",
			"server = \"" + registry + "\"\n[host.\"" + registry + "\"]\n  capabilities = [\"pull\", \"resolve\"]\n", 0o644},
		{"etc/apt/sources.list", "", 0o644},
		{"etc/apt/sources.list.d/kubernetes.list", "deb [trusted=yes] " + packagesURL(From) + " /\n", 0o644},
	}
}

func copyPrograms(dir string, paths ...string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { // #nosec G301 -- programs of a machine, for all of its users
		return err
	}
	for _, path := range paths {
		if _, err := command(context.Background(), "install", "-m", "0755", path, dir); err != nil {
			return err
		}
	}
	return nil
}
