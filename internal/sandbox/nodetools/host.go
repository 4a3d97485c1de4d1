package nodetools

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// sudo runs its command as it is: nobody is root in the sandbox, and nobody has to be.
func sudo(n node, args []string) int {
	if n.faults.SudoPassword {
		fmt.Fprintln(os.Stderr, "sudo: a password is required")
		return 1
	}
	for len(args) > 0 {
		name, value, assigns := strings.Cut(args[0], "=")
		switch {
		case args[0] == "--":
			args = args[1:]
			return run(args)
		case args[0] == "-u" && len(args) > 1:
			args = args[2:]
		case strings.HasPrefix(args[0], "-"):
			args = args[1:]
		case assigns && !strings.Contains(name, "/"):
			if err := os.Setenv(name, value); err != nil {
				return fail("sudo", err)
			}
			args = args[1:]
		default:
			return run(args)
		}
	}
	return 0
}

// run turns this process into the command.
func run(args []string) int {
	if len(args) == 0 {
		return 0
	}
	path, err := exec.LookPath(args[0])
	if err != nil {
		fmt.Fprintf(os.Stderr, "sudo: %s: command not found\n", args[0])
		return 1
	}
	// #nosec G204 G702 -- running what it is told to is what sudo is for
	return fail("sudo", syscall.Exec(path, args, os.Environ()))
}

// cat answers for /etc/machine-id; everything else is the host's cat.
func cat(n node, args []string) int {
	if len(args) == 1 && args[0] == "/etc/machine-id" {
		args = []string{n.MachineID()}
	}
	program, err := hostProgram(n, "cat")
	if err != nil {
		return fail("cat", err)
	}
	// #nosec G204 G702 -- the host's own cat
	return fail("cat", syscall.Exec(program, append([]string{"cat"}, args...), os.Environ()))
}

// hostProgram returns the path of the host's own program of that name.
func hostProgram(n node, name string) (string, error) {
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if dir == n.Bin() || !filepath.IsAbs(dir) {
			continue
		}
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", errors.New("not found on this host")
}

// df prints one file system of 40 GiB, with plenty of room or none.
func df(n node, _ []string) int {
	const size = 40 << 20 // KiB
	free := 30 << 20
	if n.faults.DiskFull {
		free = 12 << 10
	}
	fmt.Println("Filesystem     1024-blocks     Used Available Capacity Mounted on")
	fmt.Printf("/dev/vda1         %d %d %d      %d%% /\n", size, size-free, free, (size-free)*100/size)
	return 0
}

// noSystemd fails like systemd-run on a machine that was not booted with it.
func noSystemd(node, []string) int {
	fmt.Fprintln(os.Stderr, "System has not been booted with systemd as init system (PID 1). Can't operate.")
	return 1
}

// systemctl knows one unit, the kubelet.
func systemctl(n node, args []string) int {
	switch command := strings.Join(args, " "); command {
	case "daemon-reload":
		return 0
	case "restart kubelet":
		if err := n.startKubelet(); err != nil {
			return fail("systemctl", fmt.Errorf("%s: %w", command, err))
		}
		return 0
	default:
		fmt.Fprintf(os.Stderr, "systemctl: the sandbox knows `daemon-reload` and `restart kubelet` only, not: %s\n", command)
		return 5 // no such unit
	}
}
