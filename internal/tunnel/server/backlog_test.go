package server

import "syscall"

// setBacklog lets the kernel accept one connection that nobody has accepted.
func setBacklog(fd int) { _ = syscall.Listen(fd, 0) }
