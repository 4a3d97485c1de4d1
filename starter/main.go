// Command ebb starts and follows operations on Kubernetes clusters, and runs the
// embedded engine.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// version is set by the linker.
var version = "unknown"

func main() {
	ctx, release := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, release) // a second signal has its default effect
	code := run(ctx, &app{out: os.Stdout, errs: os.Stderr}, os.Args[1:])
	release()
	os.Exit(code)
}
