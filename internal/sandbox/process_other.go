//go:build !linux

package sandbox

import "syscall"

// dieWithParent is a Linux feature; elsewhere Stop ends the children.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// killUnder needs /proc; elsewhere what was detached on a node ends by itself.
func killUnder(string) {}
