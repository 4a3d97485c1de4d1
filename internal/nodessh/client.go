// Package nodessh logs in to nodes and runs things there.
//
// Host keys are always verified, nothing that could ask a question is ever used,
// and a script that takes long runs detached from the connection, at most once: a
// lost connection reattaches to it (see Run).
package nodessh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

const (
	defaultUser           = "root"
	defaultPort           = 22
	defaultConnectTimeout = 15 * time.Second
	defaultKeepAlive      = 5 * time.Second
	keepAliveMisses       = 3
)

// Target is a node and how to log in to it.
type Target struct {
	Node            string        // for messages only
	Address         string        // host:port
	User            string        // default root
	IdentityFile    string        // private key, only readable by its owner
	CertificateFile string        // OpenSSH certificate of that key
	PassphraseFile  string        // holds the passphrase of an encrypted key
	Agent           bool          // also offer the keys of the agent at SSH_AUTH_SOCK
	KnownHosts      string        // OpenSSH known_hosts file
	AcceptNew       bool          // pin the key of a host that has none there
	Jump            string        // [user@]host[:port] to connect through, with the same keys
	Sudo            bool          // run everything through sudo -n
	ConnectTimeout  time.Duration // for each hop, TCP connect and handshake together; default 15s
	KeepAlive       time.Duration // default 5s; three unanswered close the connection
}

// Client is a connection to a node. It may be used by several goroutines.
type Client struct {
	target Target
	conn   *ssh.Client
	jump   *ssh.Client // nil without a jump host
	done   chan struct{}
	once   sync.Once
}

// Dial connects and logs in. Permanent tells errors that will not go away.
func Dial(ctx context.Context, t Target) (*Client, error) {
	t.User = orDefault(t.User, defaultUser)
	t.ConnectTimeout = orDefault(t.ConnectTimeout, defaultConnectTimeout)
	t.KeepAlive = orDefault(t.KeepAlive, defaultKeepAlive)
	if _, _, err := net.SplitHostPort(t.Address); err != nil {
		return nil, fmt.Errorf("address of node %s: %w", t.Node, err)
	}

	c := &Client{target: t, done: make(chan struct{})}
	var dialer net.Dialer
	dial := dialer.DialContext
	if t.Jump != "" {
		hop, err := jumpTarget(t)
		if err != nil {
			return nil, err
		}
		if c.jump, err = connect(ctx, hop, dial); err != nil {
			return nil, err
		}
		dial = c.jump.DialContext
	}
	conn, err := connect(ctx, t, dial)
	if err != nil {
		if c.jump != nil {
			_ = c.jump.Close() // the first error is the one to tell
		}
		return nil, err
	}
	c.conn = conn
	go c.keepAlive()
	return c, nil
}

// jumpTarget is the jump host as a target of its own.
func jumpTarget(t Target) (Target, error) {
	hop := t
	hop.Node = "jump host of " + t.Node
	address := t.Jump
	if at := strings.LastIndex(address, "@"); at >= 0 {
		hop.User, address = address[:at], address[at+1:]
	}
	if host, port, err := net.SplitHostPort(address); err == nil && host != "" && port != "" {
		hop.Address = net.JoinHostPort(host, port)
		return hop, nil
	}
	host := strings.Trim(address, "[]")
	if host == "" || (strings.Contains(host, ":") && net.ParseIP(host) == nil) {
		return Target{}, fmt.Errorf("jump host %q of node %s is not [user@]host[:port]", t.Jump, t.Node)
	}
	hop.Address = net.JoinHostPort(host, strconv.Itoa(defaultPort))
	return hop, nil
}

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// connect makes one hop. Its time covers everything from the first packet to the
// accepted key, and a cancelled context ends it at once.
func connect(ctx context.Context, t Target, dial dialFunc) (*ssh.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, t.ConnectTimeout)
	defer cancel()
	keys := hostKeys{file: t.KnownHosts, acceptNew: t.AcceptNew}
	known, err := keys.open(t.Address)
	if err != nil {
		return nil, err
	}
	creds, err := loadCredentials(ctx, t)
	if err != nil {
		return nil, err
	}
	defer func() { _ = creds.Close() }() // only the agent's socket, of no use any more

	conn, err := dial(ctx, "tcp", t.Address)
	if err != nil {
		return nil, t.lost(ctx, "connect to "+t.Address, err)
	}
	stop := context.AfterFunc(ctx, func() {
		_ = conn.Close() // best effort: unblocks the handshake
		_ = creds.Close()
	})
	client, err := handshake(conn, t, keys, known, creds)
	if err != nil {
		stop()
		_ = conn.Close() // the handshake's error is the one to tell
		if Permanent(err) {
			return nil, err
		}
		return nil, t.lost(ctx, "handshake with "+t.Address, err)
	}
	if !stop() {
		_ = client.Close() // cut off at the very end
		return nil, t.lost(ctx, "handshake with "+t.Address, ctx.Err())
	}
	return client, nil
}

func handshake(conn net.Conn, t Target, keys hostKeys, known ssh.HostKeyCallback, creds credentials) (*ssh.Client, error) {
	var rejected error
	config := &ssh.ClientConfig{
		User:              t.User,
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(creds.signers...)},
		HostKeyAlgorithms: keys.algorithms(t.Address, known),
		HostKeyCallback: func(address string, remote net.Addr, key ssh.PublicKey) error {
			rejected = keys.verify(address, remote, key)
			return rejected
		},
	}
	c, channels, requests, err := ssh.NewClientConn(conn, t.Address, config)
	switch {
	case rejected != nil:
		return nil, fmt.Errorf("node %s: %w", t.Node, rejected)
	case err != nil && refused(err):
		return nil, fmt.Errorf("node %s: %w", t.Node, &AuthError{User: t.User, Host: t.Address, Err: err})
	case err != nil:
		return nil, err
	}
	return ssh.NewClient(c, channels, requests), nil
}

// refused tells a refused login from a broken connection. The ssh package has no
// type for it; the tests hold this text against that package and OpenSSH.
func refused(err error) bool {
	text := err.Error()
	return strings.Contains(text, "unable to authenticate") || strings.Contains(text, "Too many authentication failures")
}

// lost makes a TransportError. The reason of an ended context is told instead of
// the closed connection it led to.
func (t Target) lost(ctx context.Context, op string, err error) error {
	if ctxErr := ctx.Err(); ctxErr != nil && !errors.Is(err, ctxErr) {
		err = fmt.Errorf("%w (%w)", ctxErr, err)
	}
	return &TransportError{Node: t.Node, Op: op, Err: err}
}

// keepAlive closes the connection when the node has not answered for three
// intervals, so that whoever waits on it gets an error instead of waiting on.
func (c *Client) keepAlive() {
	ticker := time.NewTicker(c.target.KeepAlive)
	defer ticker.Stop()
	answered := make(chan error, 1)
	waiting, missed := false, 0
	for {
		select {
		case <-c.done:
			return
		case err := <-answered:
			if err != nil {
				_ = c.Close() // the connection is gone already
				return
			}
			waiting, missed = false, 0
		case <-ticker.C:
			if waiting {
				if missed++; missed >= keepAliveMisses {
					_ = c.Close() // the peer is not there to be told
					return
				}
				continue
			}
			waiting = true
			go func() {
				_, _, err := c.conn.SendRequest("keepalive@openssh.com", true, nil)
				answered <- err
			}()
		}
	}
}

// Close ends the connection. What runs detached goes on.
func (c *Client) Close() error {
	var err error
	c.once.Do(func() {
		close(c.done)
		err = c.conn.Close()
		if c.jump != nil {
			err = errors.Join(err, c.jump.Close())
		}
	})
	return err
}
