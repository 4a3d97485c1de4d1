package testbed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"go.temporal.io/sdk/client"

	"ebb/internal/embedded"
	"ebb/internal/engine"
	"ebb/internal/freeport"
	"ebb/internal/ops"
)

// StartEngine starts the engine on its file, which may hold operations from
// before, at the port where it was before.
func (b *Bed) StartEngine(ctx context.Context) error {
	start := b.startInside
	if b.options.EngineProcess {
		start = b.startProcess
	}
	if err := start(ctx); err != nil {
		return fmt.Errorf("start the engine: %w", err)
	}
	if b.Client != nil {
		return nil // it finds the engine where it was
	}
	return b.connect(ctx)
}

func (b *Bed) engineDir() string { return filepath.Join(b.options.Dir, "engine") }

// startInside runs the engine in this process.
func (b *Bed) startInside(ctx context.Context) (err error) {
	o := embedded.Options{Dir: b.engineDir(), UIPort: b.options.UIPort, Log: b.options.Log}
	if b.address != "" {
		if o.Port, err = portOf(b.address); err != nil {
			return err
		}
	}
	if b.Engine, err = embedded.Start(ctx, o); err != nil {
		return err
	}
	b.address = b.Engine.Address()
	return nil
}

// startProcess runs the engine as a process; it returns before the engine serves.
func (b *Bed) startProcess(ctx context.Context) error {
	binary, err := Binary("ebb")
	if err != nil {
		return err
	}
	if b.address == "" {
		port, err := freeport.One(ctx, "127.0.0.1")
		if err != nil {
			return err
		}
		b.address = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	}
	port, err := portOf(b.address)
	if err != nil {
		return err
	}
	b.engine, err = StartProcess(ctx, filepath.Join(b.options.Dir, "engine.log"), os.Environ(), binary, "dev", "--no-worker",
		"--log-level", "warn", "--state-dir", b.engineDir(), "--port", strconv.Itoa(port), "--ui-port", "-1")
	return err
}

// connect dials the engine, which may still be starting.
func (b *Bed) connect(ctx context.Context) error {
	var last error
	err := Poll(ctx, func() (bool, error) {
		b.Client, last = engine.Dial(ctx, b.options.Log, engine.Options{Address: b.address, Namespace: client.DefaultNamespace})
		if last != nil && b.engine != nil {
			select {
			case <-b.engine.Done():
				return false, fmt.Errorf("the engine has ended, see %s: %w", b.engine.Log, last)
			default:
			}
		}
		return last == nil, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	b.Ops = ops.NewTemporal(b.Client, client.DefaultNamespace)
	return nil
}

// KillEngine kills the engine's process with SIGKILL; its file stays.
func (b *Bed) KillEngine() error { return b.engine.Kill() }

// StopEngine stops the engine as a crash would leave it: its file stays.
func (b *Bed) StopEngine() {
	b.Client.Close()
	b.Client = nil
	b.Engine.Stop()
}

// endEngine stops whatever there is of an engine.
func (b *Bed) endEngine() error {
	if b.Client != nil {
		b.Client.Close()
	}
	if b.Engine != nil {
		b.Engine.Stop()
	}
	if b.engine != nil {
		return b.engine.Stop()
	}
	return nil
}

func portOf(address string) (int, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(port)
}
