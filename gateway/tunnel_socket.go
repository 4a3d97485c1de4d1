package main

import (
	"context"
	"fmt"
	"net"
	"os"
)

// socket is a Unix socket that only this user may open. A new gateway takes the path over
// while an old one still serves what it has accepted.
type socket struct {
	*net.UnixListener
	path string
	own  os.FileInfo
}

// openSocket listens at a path. The socket is made beside it and gets its name when it is
// private.
func openSocket(ctx context.Context, path string) (*socket, error) {
	if found, err := os.Lstat(path); err == nil && found.Mode().Type() != os.ModeSocket {
		return nil, fmt.Errorf("%s exists and is no socket", path)
	}
	temporary := fmt.Sprintf("%s.%d", path, os.Getpid())
	l, err := new(net.ListenConfig).Listen(ctx, "unix", temporary)
	if err != nil {
		return nil, err
	}
	s := &socket{UnixListener: l.(*net.UnixListener), path: path}
	s.SetUnlinkOnClose(false)
	if err = os.Chmod(temporary, 0o600); err == nil {
		if s.own, err = os.Lstat(temporary); err == nil {
			err = os.Rename(temporary, path)
		}
	}
	if err != nil {
		_, _ = s.UnixListener.Close(), os.Remove(temporary)
		return nil, err
	}
	return s, nil
}

// Close ends the listener, and removes the socket unless another gateway has taken the path over.
func (s *socket) Close() error {
	err := s.UnixListener.Close()
	if now, statErr := os.Lstat(s.path); statErr == nil && os.SameFile(now, s.own) {
		_ = os.Remove(s.path) // a socket without a listener does no harm
	}
	return err
}
