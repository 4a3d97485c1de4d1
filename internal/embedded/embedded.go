// Package embedded runs a Temporal server and its Web UI in this process, on a
// SQLite file: durable across crashes, with nothing to install. It is one
// process and so not highly available.
package embedded

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	uiserver "github.com/temporalio/ui-server/v2/server"
	"go.temporal.io/server/temporal"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"ebb/internal/wait"
)

// Default ports of `ebb dev`: those of `temporal server start-dev`.
const (
	DefaultPort   = 7233
	DefaultUIPort = 8233
)

// startTimeout is how long the server may take to start; it takes one to three seconds
// on two cores.
const startTimeout = 60 * time.Second

// probeInterval is the time between two questions whether a server that starts serves.
const probeInterval = 20 * time.Millisecond

// Options of the embedded server.
type Options struct {
	Dir       string // state directory, created with mode 0700; the database is temporal.db in it
	Host      string // address to listen on, default 127.0.0.1
	Port      int    // of the gRPC frontend; 0 = a free one
	UIPort    int    // of the Web UI; 0 = a free one, -1 = no Web UI
	Namespace string // default "default"
	Log       *zap.Logger
}

// Server is a running Temporal server with its Web UI.
type Server struct {
	options  Options
	lock     *os.File
	server   temporal.Server
	ui       *uiserver.Server
	stopOnce sync.Once
}

// DefaultDir returns the default state directory: $XDG_STATE_HOME/ebb, or
// ~/.local/state/ebb.
func DefaultDir() (string, error) {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "ebb"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("find the state directory: %w", err)
	}
	return filepath.Join(home, ".local", "state", "ebb"), nil
}

// Start starts the server and returns when it serves. The error says what to do when a
// port is taken or another process uses the state directory.
func Start(ctx context.Context, o Options) (*Server, error) {
	s := &Server{options: o.withDefaults()}
	if err := s.start(ctx); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

func (o Options) withDefaults() Options {
	if o.Host == "" {
		o.Host = "127.0.0.1"
	}
	if o.Namespace == "" {
		o.Namespace = "default"
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	return o
}

func (s *Server) start(ctx context.Context) (err error) {
	o := &s.options
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return fmt.Errorf("state directory: %w: choose another directory with --state-dir", err)
	}
	if s.lock, err = lockDir(o.Dir); err != nil {
		return err
	}
	ports, err := choosePorts(ctx, o)
	if err != nil {
		return err
	}
	if s.server, err = newServer(*o, ports); err != nil {
		return err
	}
	if err := s.server.Start(); err != nil {
		return fmt.Errorf("start the Temporal server: %w", err)
	}
	if err := s.awaitServing(ctx); err != nil {
		return err
	}
	if o.UIPort != -1 {
		return s.startUI(ctx)
	}
	return nil
}

// Address returns the host:port of the gRPC frontend.
func (s *Server) Address() string {
	return net.JoinHostPort(dialHost(s.options.Host), strconv.Itoa(s.options.Port))
}

// Namespace returns the namespace that was registered.
func (s *Server) Namespace() string { return s.options.Namespace }

// UI returns the URL of the Web UI, empty when there is none.
func (s *Server) UI() string {
	if s.options.UIPort == -1 {
		return ""
	}
	return "http://" + net.JoinHostPort(dialHost(s.options.Host), strconv.Itoa(s.options.UIPort))
}

// Stop stops the server. The database stays and can be used by the next one. It may be
// called more than once.
func (s *Server) Stop() {
	s.stopOnce.Do(func() {
		if s.ui != nil {
			s.ui.Stop()
		}
		if s.server != nil {
			if err := s.server.Stop(); err != nil {
				s.options.Log.Warn("stop the Temporal server", zap.Error(err))
			}
		}
		if s.lock != nil {
			unlockDir(s.lock)
		}
	})
}

// awaitServing waits until the frontend's health service says that it serves.
func (s *Server) awaitServing(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	conn, err := grpc.NewClient(s.Address(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing was written
	health := grpc_health_v1.NewHealthClient(conn)
	var last error // of the health service
	err = wait.Poll(ctx, probeInterval, func() (bool, error) {
		var answer *grpc_health_v1.HealthCheckResponse
		answer, last = health.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: "temporal.api.workflowservice.v1.WorkflowService"})
		return last == nil && answer.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING, nil
	})
	if err != nil {
		return fmt.Errorf("the Temporal server at %s does not serve: %w", s.Address(), errors.Join(err, last))
	}
	return nil
}
