package sandbox

import (
	"bufio"
	"errors"
	"net"
	"strings"
	"sync"

	"go.uber.org/zap"

	"ebb/internal/sandbox/nodedir"
)

// Hooks let a test stand between the machines and whoever asked them for something:
// the thing is done, and its answer waits until the hook returns.
type Hooks struct {
	// CommandEnded is called when a command of an SSH session has ended on a node,
	// before the client is told its exit code.
	CommandEnded func(node string)
	// InfraDone is called when the infrastructure has done what it was asked for
	// ("state", "destroy", "attach-iso" or "detach-iso"), before it answers.
	InfraDone func(node, action string)
}

// hooks are those that are set now.
type hooks struct {
	mu       sync.RWMutex
	now      Hooks
	listener net.Listener
}

// SetHooks sets hooks in place of earlier ones.
func (s *Sandbox) SetHooks(h Hooks) error {
	s.hooks.mu.Lock()
	defer s.hooks.mu.Unlock()
	s.hooks.now = h
	if h.InfraDone == nil || s.hooks.listener != nil {
		return nil
	}
	l, err := net.Listen("unix", nodedir.InfraSocket(s.opts.Dir)) //nolint:noctx // a socket file, at once
	if err != nil {
		return err
	}
	s.hooks.listener = l
	go s.serveInfra(l)
	return nil
}

func (h *hooks) get() Hooks {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.now
}

func (h *hooks) commandEnded(node string) {
	if hook := h.get().CommandEnded; hook != nil {
		hook(node)
	}
}

func (h *hooks) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.listener != nil {
		_ = h.listener.Close() // nobody asks any more
	}
}

// serveInfra calls the hook for each connection of the infrastructure command, which
// waits for the end of its connection.
func (s *Sandbox) serveInfra(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				s.opts.Log.Error("sandbox: the socket of the infrastructure has ended", zap.Error(err))
			}
			return
		}
		go func() {
			defer func() { _ = conn.Close() }() // its end is the answer
			line, err := bufio.NewReader(conn).ReadString('\n')
			action, node, ok := strings.Cut(strings.TrimSpace(line), " ")
			if hook := s.hooks.get().InfraDone; err == nil && ok && hook != nil {
				hook(node, action)
			}
		}()
	}
}
