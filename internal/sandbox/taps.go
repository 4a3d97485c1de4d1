package sandbox

import (
	"bufio"
	"errors"
	"net"
	"strings"
	"sync"

	"go.uber.org/zap"

	"ebb/internal/sandbox/nodefs"
)

// Taps let a test stand between the machines and whoever asked them for
// something: the thing is done, and its answer waits until the tap returns.
type Taps struct {
	// Command is called when a command of an SSH session has ended on a node,
	// before the client is told its exit code.
	Command func(node string)
	// Infra is called when the infrastructure has done what it was asked for
	// ("state" or "destroy"), before it answers.
	Infra func(node, action string)
}

// taps are the taps that are in place now.
type taps struct {
	mu       sync.RWMutex
	now      Taps
	listener net.Listener
}

// Tap puts taps in place, in the stead of earlier ones.
func (s *Sandbox) Tap(t Taps) error {
	s.taps.mu.Lock()
	defer s.taps.mu.Unlock()
	s.taps.now = t
	if t.Infra == nil || s.taps.listener != nil {
		return nil
	}
	l, err := net.Listen("unix", nodefs.InfraTap(s.opts.Dir)) //nolint:noctx // a socket file, at once
	if err != nil {
		return err
	}
	s.taps.listener = l
	go s.serveInfra(l)
	return nil
}

func (t *taps) get() Taps {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.now
}

func (t *taps) commandEnded(node string) {
	if tap := t.get().Command; tap != nil {
		tap(node)
	}
}

func (t *taps) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.listener != nil {
		_ = t.listener.Close() // nobody asks any more
	}
}

// serveInfra hears from the infrastructure command, which waits for the end of
// its connection.
func (s *Sandbox) serveInfra(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				s.opts.Log.Error("sandbox: the tap of the infrastructure has ended", zap.Error(err))
			}
			return
		}
		go func() {
			defer func() { _ = conn.Close() }() // its end is the answer
			line, err := bufio.NewReader(conn).ReadString('\n')
			action, node, ok := strings.Cut(strings.TrimSpace(line), " ")
			if tap := s.taps.get().Infra; err == nil && ok && tap != nil {
				tap(node, action)
			}
		}()
	}
}
