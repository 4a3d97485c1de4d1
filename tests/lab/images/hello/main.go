// Hello is the workload of the lab: a web server that ends the way a good one
// does. After SIGTERM it serves on for as long as a Service may still send it
// requests, then finishes those that run.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// lameDuck is longer than it takes until every kube-proxy has heard that the
// pod is terminating.
const lameDuck = 10 * time.Second

func main() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve() error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	terminated, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	server := &http.Server{
		Addr: ":8080", ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "hello from", name) }),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	select {
	case err := <-failed:
		return err
	case <-terminated.Done():
	}
	time.Sleep(lameDuck)
	ending, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return errors.Join(server.Shutdown(ending))
}
