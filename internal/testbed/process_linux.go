package testbed

import "syscall"

// dieWithParent has the kernel kill a child when the thread that started it ends.
// A group of its own keeps the terminal's Ctrl-C, which is for the parent, from it.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
