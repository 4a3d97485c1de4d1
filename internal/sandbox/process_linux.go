package sandbox

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// dieWithParent has the kernel kill a child when the thread that started it ends.
// A group of its own keeps the terminal's Ctrl-C, which is for the parent, from it.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

// killUnder kills every process that has the directory in its environment (PATH): what was
// started on a node, detached or not. Errors mean that it has ended meanwhile.
func killUnder(bin string) {
	environments, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return
	}
	for _, file := range environments {
		env, err := os.ReadFile(file) // #nosec G304 -- below /proc
		if err != nil || !bytes.Contains(env, []byte(bin)) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil && pid != os.Getpid() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}
