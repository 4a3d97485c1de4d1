package sandbox

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"go.uber.org/zap"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"ebb/internal/sandbox/nodedir"
)

// sshUser is the only user of the nodes.
const sshUser = "ebb"

// makeSSHKey writes the user's private key (mode 0600) and returns its public half.
func (s *Sandbox) makeSSHKey() (ssh.PublicKey, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(private, "ebb sandbox")
	if err != nil {
		return nil, err
	}
	s.sshKey = filepath.Join(s.opts.Dir, "ssh", "id_ed25519")
	if err := os.WriteFile(s.sshKey, pem.EncodeToMemory(block), 0o600); err != nil {
		return nil, err
	}
	return ssh.NewPublicKey(public)
}

// sshServer is the SSH server of one node.
type sshServer struct {
	place
	user         ssh.PublicKey // key of the only user that is let in
	dir          nodedir.Dir
	log          *zap.Logger
	commandEnded func() // called before the client is told

	mu       sync.Mutex
	hostKey  ssh.Signer
	listener net.Listener // nil = nobody can connect
	conns    map[net.Conn]bool
}

func (s *sshServer) newHostKey() error {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hostKey = signer
	return nil
}

// knownHost returns the server's line in an OpenSSH known_hosts file.
func (s *sshServer) knownHost() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return knownhosts.Line([]string{s.hostPort()}, s.hostKey.PublicKey()) + "\n"
}

func (s *sshServer) hostPort() string { return net.JoinHostPort(s.address, strconv.Itoa(s.port)) }

// open lets clients connect; a server that is open stays so.
func (s *sshServer) open(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener != nil {
		return nil
	}
	l, err := s.listen(ctx, s.hostPort())
	if err != nil {
		return fmt.Errorf("listen for SSH: %w", err)
	}
	s.listener, s.conns = l, map[net.Conn]bool{}
	go s.accept(l)
	return nil
}

// close refuses new connections and cuts those that are there.
func (s *sshServer) close() {
	s.mu.Lock()
	l := s.listener
	s.listener = nil
	s.mu.Unlock()
	if l != nil {
		if err := l.Close(); err != nil {
			s.log.Warn("sandbox: close the SSH server", zap.Error(err))
		}
	}
	s.drop()
}

// drop cuts every connection; what runs on the node goes on.
func (s *sshServer) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.conns {
		_ = conn.Close() // a connection that is closed already is what is wanted
	}
}

func (s *sshServer) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				s.log.Error("sandbox: the SSH server has ended", zap.Error(err))
			}
			return
		}
		s.mu.Lock()
		ours := s.listener == l && !nodedir.Marked(s.dir.Destroyed())
		if ours {
			s.conns[conn] = true
		}
		s.mu.Unlock()
		if !ours {
			_ = conn.Close() // the machine has just gone
			continue
		}
		go s.serve(conn)
	}
}

func (s *sshServer) config() *ssh.ServerConfig {
	s.mu.Lock()
	defer s.mu.Unlock()
	cfg := &ssh.ServerConfig{PublicKeyCallback: func(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if meta.User() != sshUser || !bytes.Equal(key.Marshal(), s.user.Marshal()) {
			return nil, errors.New("not the key of the user " + sshUser)
		}
		return &ssh.Permissions{}, nil
	}}
	cfg.AddHostKey(s.hostKey)
	return cfg
}

// serve runs one connection with all its sessions.
func (s *sshServer) serve(conn net.Conn) {
	defer func() {
		_ = conn.Close() // the client has most often closed it already
		s.mu.Lock()
		delete(s.conns, conn)
		s.mu.Unlock()
	}()
	_, channels, requests, err := ssh.NewServerConn(conn, s.config())
	if err != nil {
		s.log.Debug("sandbox: SSH handshake", zap.Error(err))
		return
	}
	go ssh.DiscardRequests(requests) // answers keepalives
	for offered := range channels {
		if offered.ChannelType() != "session" {
			_ = offered.Reject(ssh.UnknownChannelType, "only sessions are served") // fails with the connection
			continue
		}
		channel, requests, err := offered.Accept()
		if err != nil {
			return
		}
		go (&session{dir: s.dir, log: s.log, channel: channel, ended: s.commandEnded}).serve(requests)
	}
}
