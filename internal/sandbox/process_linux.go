package sandbox

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// killProcessesOf kills every process that has a node's bin folder in its environment
// (PATH): what was started on the node, detached or not. Errors mean that it has ended
// meanwhile.
func killProcessesOf(bin string) {
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
