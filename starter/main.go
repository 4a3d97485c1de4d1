// Command ebb starts and follows operations on Kubernetes clusters, and runs the
// embedded engine.
package main

import (
	"context"
	"os"

	"ebb/internal/command"
)

// version is set by the linker.
var version = "unknown"

func main() {
	ctx, stop := command.SignalContext(context.Background())
	code := run(ctx, &app{out: os.Stdout, errs: os.Stderr}, os.Args[1:])
	stop()
	os.Exit(code)
}
