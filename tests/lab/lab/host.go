package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// hostPackages are what the lab needs on its host, by the program that shows that
// they are there.
var hostPackages = map[string]string{
	"debootstrap": "debootstrap",
	"dpkg-deb":    "dpkg",
	"ip":          "iproute2",
	"mkfs.ext4":   "e2fsprogs",
	"nsenter":     "util-linux",
	"unshare":     "util-linux",
}

// UnsupportedError says why a lab cannot run on this host.
type UnsupportedError struct{ Reason string }

func (u *UnsupportedError) Error() string { return "the lab cannot run here: " + u.Reason }

// CheckHost returns an *Unsupported when a lab cannot run on this host.
func (l *Lab) CheckHost() error {
	release, err := read("/etc/os-release")
	switch {
	case os.Getuid() != 0:
		return &UnsupportedError{"it needs root, for namespaces, cgroups and mounts"}
	case err != nil || !strings.Contains(release, "ID=debian"):
		return &UnsupportedError{"it needs a Debian host, whose packages its machines are made of"}
	}
	for _, device := range []string{"/dev/loop-control", "/dev/kmsg"} {
		if _, err := os.Stat(device); err != nil {
			return &UnsupportedError{"there is no " + device}
		}
	}
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		return err
	}
	if len(hierarchies) == 0 {
		return &UnsupportedError{"this host has no cgroup v1 hierarchies; version 2 alone is not known to the lab yet"}
	}
	return nil
}

// installHostPackages installs what is missing on the host.
func (l *Lab) installHostPackages(ctx context.Context) error {
	missing := map[string]bool{}
	for program, name := range hostPackages {
		if _, err := exec.LookPath(program); err != nil {
			missing[name] = true
		}
	}
	if len(missing) == 0 {
		return nil
	}
	args := []string{"RUNLEVEL=1", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-qq", "--no-install-recommends"}
	for name := range missing {
		args = append(args, name)
	}
	defer l.step("installing %s", strings.Join(args[7:], ", "))()
	if _, err := command(ctx, "apt-get", "update", "-qq"); err != nil {
		return err
	}
	_, err := command(ctx, "env", args...)
	return err
}

// cgroupHierarchies returns the names of the host's cgroup v1 hierarchies, and of the
// version 2 one beside them.
func cgroupHierarchies() ([]string, error) {
	mounts, err := read("/proc/mounts")
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(mounts) {
		if fields := strings.Fields(line); fields[2] == "cgroup" && filepath.Dir(fields[1]) == cgroupRoot {
			names = append(names, filepath.Base(fields[1]))
		}
	}
	return names, nil
}

// Leftovers lists what a lab has left on the host: nothing, after Down.
func (l *Lab) Leftovers() ([]string, error) {
	var left []string
	for _, pattern := range []string{namespaces + prefix + "*", cgroupRoot + "/*/" + prefix, l.run} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		left = append(left, found...)
	}
	mounts, err := read("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(mounts) {
		if strings.Contains(line, l.run) {
			left = append(left, "mount "+strings.TrimSpace(line))
		}
	}
	loops, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	for _, loop := range loops {
		if file, err := read(loop); err == nil && strings.HasPrefix(file, l.run) { // a loop device may go meanwhile
			left = append(left, fmt.Sprintf("loop device %s of %s", loop, file))
		}
	}
	processes, err := l.processes()
	return append(left, processes...), err
}

// labProcesses lists the processes of any lab of this host: those of l, and those in the
// network namespaces that labs of other source trees have made.
func (l *Lab) labProcesses(ctx context.Context) ([]string, error) {
	running, err := l.processes()
	if err != nil {
		return nil, err
	}
	found, err := filepath.Glob(namespaces + prefix + "*")
	if err != nil {
		return nil, err
	}
	for _, path := range found {
		pids, err := command(ctx, "ip", "netns", "pids", filepath.Base(path))
		if err != nil {
			return nil, err
		}
		for pid := range strings.FieldsSeq(pids) {
			running = append(running, "process "+pid+" in "+path)
		}
	}
	return running, nil
}

// processes lists the processes that are in a namespace or cgroup of the lab, or
// run one of its programs, this process and its parents excepted.
func (l *Lab) processes() ([]string, error) {
	own := map[string]bool{}
	for pid := os.Getpid(); pid > 1; {
		own[fmt.Sprint(pid)] = true
		parent, err := parentPID(pid)
		if err != nil {
			return nil, err
		}
		pid = parent
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var left []string
	for _, dir := range dirs {
		groups, err := read(filepath.Join(dir, "cgroup"))
		if errors.Is(err, os.ErrNotExist) || own[filepath.Base(dir)] {
			continue // it has ended, or is this one
		}
		line, _ := read(filepath.Join(dir, "cmdline")) // it may have ended
		line = strings.ReplaceAll(line, "\x00", " ")
		if line == "" {
			continue // it has ended, and waits for its parent to notice
		}
		if strings.Contains(groups, ":/"+prefix+"/") || strings.Contains(line, l.run) {
			left = append(left, fmt.Sprintf("process %s: %.200s", filepath.Base(dir), line))
		}
	}
	return left, nil
}

func parentPID(pid int) (int, error) {
	stat, err := read(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	var state string
	var parent int
	// The name, in parentheses, may hold anything.
	_, err = fmt.Sscan(stat[strings.LastIndexByte(stat, ')')+1:], &state, &parent)
	return parent, err
}
