// Pause keeps the namespaces of a pod of the lab open: it waits for its end and
// reaps what is orphaned in the pod.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	// kubeadm's upgrade check runs the pause image with -v as a Job, which has to end well.
	if len(os.Args) > 1 && os.Args[1] == "-v" {
		fmt.Println("pause of the lab")
		return
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}
