// Package child starts processes that die with this one, however it ends.
package child

import (
	"os/exec"
	"runtime"
	"sync"
)

// Start starts a command as a child that the kernel kills when this process ends
// (Linux only; elsewhere whoever started it has to stop it). The child has a process
// group of its own, so that the terminal's Ctrl-C, which is for the parent, does not
// reach it. Start sets SysProcAttr.
func Start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = dieWithParent()
	done := make(chan error)
	starts() <- func() { done <- cmd.Start() }
	return <-done
}

// starts returns the queue of one thread that starts all children: the kernel ties
// the life of a child to the thread that started it.
var starts = sync.OnceValue(func() chan<- func() {
	tasks := make(chan func())
	go func() {
		runtime.LockOSThread()
		for task := range tasks {
			task()
		}
	}()
	return tasks
})
