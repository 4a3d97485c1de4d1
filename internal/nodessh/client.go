// Package nodessh logs in to nodes over SSH and runs scripts there.
//
// Host keys are always verified and no interactive authentication is used. A script
// that takes long runs detached from the connection, at most once: after a lost
// connection the caller attaches to it again (see Run).
package nodessh

import (
	"cmp"
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
	keepAliveCountMax     = 3 // as ServerAliveCountMax of ssh_config
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
	AcceptNew       bool          // add the key of a host that has none there, as StrictHostKeyChecking=accept-new
	Jump            string        // [user@]host[:port] of a jump host, as ProxyJump, with the same keys
	Sudo            bool          // run everything through sudo -n
	ConnectTimeout  time.Duration // of each connection, TCP connect and handshake together; default 15s
	KeepAlive       time.Duration // interval, default 5s; three unanswered requests close the connection

	// Dial connects to the node, or to its jump host. nil = directly.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Client is an SSH connection to a node. Several goroutines may use it.
type Client struct {
	target    Target
	conn      *ssh.Client
	jumpConn  *ssh.Client // nil without a jump host
	closed    chan struct{}
	closeOnce sync.Once
}

// Dial connects to a node, through its jump host if it has one, and logs in. Whether
// another try may succeed is for Permanent to tell. The caller closes the client.
func Dial(ctx context.Context, t Target) (*Client, error) {
	t.User = cmp.Or(t.User, defaultUser)
	t.ConnectTimeout = cmp.Or(t.ConnectTimeout, defaultConnectTimeout)
	t.KeepAlive = cmp.Or(t.KeepAlive, defaultKeepAlive)
	if _, _, err := net.SplitHostPort(t.Address); err != nil {
		return nil, fmt.Errorf("address of node %s: %w", t.Node, err)
	}

	c := &Client{target: t, closed: make(chan struct{})}
	dial := t.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	if t.Jump != "" {
		jump, err := jumpTarget(t)
		if err != nil {
			return nil, err
		}
		if c.jumpConn, err = connect(ctx, jump, dial); err != nil {
			return nil, err
		}
		dial = c.jumpConn.DialContext
	}
	conn, err := connect(ctx, t, dial)
	if err != nil {
		if c.jumpConn != nil {
			_ = c.jumpConn.Close() // the first error is returned
		}
		return nil, err
	}
	c.conn = conn
	go c.keepAlive()
	return c, nil
}

// jumpTarget returns the jump host as a target of its own.
func jumpTarget(t Target) (Target, error) {
	jump := t
	jump.Node = "jump host of " + t.Node
	address := t.Jump
	if at := strings.LastIndex(address, "@"); at >= 0 {
		jump.User, address = address[:at], address[at+1:]
	}
	if host, port, err := net.SplitHostPort(address); err == nil && host != "" && port != "" {
		jump.Address = net.JoinHostPort(host, port)
		return jump, nil
	}
	host := strings.Trim(address, "[]")
	if host == "" || (strings.Contains(host, ":") && net.ParseIP(host) == nil) {
		return Target{}, fmt.Errorf("jump host %q of node %s is not [user@]host[:port]", t.Jump, t.Node)
	}
	jump.Address = net.JoinHostPort(host, strconv.Itoa(defaultPort))
	return jump, nil
}

// connect makes one SSH connection. ConnectTimeout covers TCP connect, handshake and
// authentication; the end of ctx ends it at once.
func connect(ctx context.Context, t Target, dial func(ctx context.Context, network, address string) (net.Conn, error)) (*ssh.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, t.ConnectTimeout)
	defer cancel()
	verifier := hostKeyVerifier{file: t.KnownHosts, acceptNew: t.AcceptNew}
	checkHostKey, err := verifier.loadKnownHosts(t.Address)
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
		return nil, t.transportError(ctx, "connect to "+t.Address, err)
	}
	stop := context.AfterFunc(ctx, func() {
		_ = conn.Close() // best effort: unblocks the handshake
		_ = creds.Close()
	})
	client, err := handshake(conn, t, verifier, checkHostKey, creds)
	if err != nil {
		stop()
		_ = conn.Close() // the handshake's error is returned
		if Permanent(err) {
			return nil, err
		}
		return nil, t.transportError(ctx, "handshake with "+t.Address, err)
	}
	if !stop() {
		_ = client.Close() // ctx ended after the handshake and closed conn
		return nil, t.transportError(ctx, "handshake with "+t.Address, ctx.Err())
	}
	return client, nil
}

// handshake verifies the host's key and logs in. A host key or a login that is refused
// is a *HostKeyError or an *AuthError.
func handshake(conn net.Conn, t Target, verifier hostKeyVerifier, checkHostKey ssh.HostKeyCallback, creds credentials) (*ssh.Client, error) {
	var rejected error
	config := &ssh.ClientConfig{
		User:              t.User,
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(creds.signers...)},
		HostKeyAlgorithms: verifier.hostKeyAlgorithms(t.Address, checkHostKey),
		HostKeyCallback: func(address string, remote net.Addr, key ssh.PublicKey) error {
			rejected = verifier.verify(address, remote, key)
			return rejected
		},
	}
	c, channels, requests, err := ssh.NewClientConn(conn, t.Address, config)
	switch {
	case rejected != nil:
		return nil, fmt.Errorf("node %s: %w", t.Node, rejected)
	case err != nil && isAuthFailure(err):
		return nil, fmt.Errorf("node %s: %w", t.Node, &AuthError{User: t.User, Host: t.Address, Err: err})
	case err != nil:
		return nil, err
	}
	return ssh.NewClient(c, channels, requests), nil
}

// isAuthFailure reports whether err is a refused login and not a broken connection.
// x/crypto/ssh has no exported type for either form of it, so their text is compared;
// tests with that package's server and with OpenSSH's notice when it changes.
func isAuthFailure(err error) bool {
	text := err.Error()
	return strings.Contains(text, "unable to authenticate") || strings.Contains(text, "Too many authentication failures")
}

// transportError returns a *TransportError. When ctx has ended, its error comes first:
// err is then only the closed connection that it led to.
func (t Target) transportError(ctx context.Context, op string, err error) error {
	if ctxErr := ctx.Err(); ctxErr != nil && !errors.Is(err, ctxErr) {
		err = fmt.Errorf("%w (%w)", ctxErr, err)
	}
	return &TransportError{Node: t.Node, Op: op, Err: err}
}

// keepAlive sends a request every interval and closes the connection when
// keepAliveCountMax intervals pass without an answer, so that calls that wait fail.
func (c *Client) keepAlive() {
	ticker := time.NewTicker(c.target.KeepAlive)
	defer ticker.Stop()
	replies := make(chan error, 1)
	pending, missed := false, 0
	for {
		select {
		case <-c.closed:
			return
		case err := <-replies:
			if err != nil {
				_ = c.Close() // the connection is lost already
				return
			}
			pending, missed = false, 0
		case <-ticker.C:
			if pending {
				if missed++; missed >= keepAliveCountMax {
					_ = c.Close() // the peer does not answer, so neither does the error matter
					return
				}
				continue
			}
			pending = true
			go func() {
				_, _, err := c.conn.SendRequest("keepalive@openssh.com", true, nil)
				replies <- err
			}()
		}
	}
}

// Close ends the connection, and may be repeated. Detached runs go on.
func (c *Client) Close() error {
	var err error
	c.closeOnce.Do(func() {
		close(c.closed)
		err = c.conn.Close()
		if c.jumpConn != nil {
			err = errors.Join(err, c.jumpConn.Close())
		}
	})
	return err
}
