package nodessh

import (
	"bufio"
	"context"
	_ "embed" // the node's side of a relay
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"ebb/internal/tail"
)

//go:embed node/relay.sh
var relayScript string

// relayReady is the line after which a relay carries the bytes of the port. What a
// login prints comes before it.
const relayReady = "ebb-relay-ready"

// Dial returns a connection from the node to an address, host:port as the node
// resolves it. Where the SSH server does not forward (AllowTcpForwarding no) a command
// on the node makes the connection. The error is a *TransportError.
func (c *Client) Dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := c.conn.DialContext(ctx, "tcp", address)
	if forwardingRefused(err) {
		conn, err = c.relay(ctx, address)
	}
	if err != nil {
		return nil, c.target.transportError(ctx, "connect to "+address, err)
	}
	return conn, nil
}

// forwardingRefused reports whether the server forwards no connection, whoever listens.
func forwardingRefused(err error) bool {
	var refused *ssh.OpenChannelError
	return errors.As(err, &refused) && (refused.Reason == ssh.Prohibited || refused.Reason == ssh.UnknownChannelType)
}

// relay connects to an address by a command on the node.
func (c *Client) relay(ctx context.Context, address string) (net.Conn, error) {
	script, err := relayTo(address)
	if err != nil {
		return nil, err
	}
	type opened struct {
		conn *relayConn
		err  error
	}
	done := make(chan opened, 1)
	go func() {
		conn, err := c.openRelay(ctx, script)
		done <- opened{conn, err}
	}()
	select {
	case o := <-done:
		if o.err != nil {
			return nil, o.err
		}
		return o.conn, nil
	case <-ctx.Done():
		go func() {
			if o := <-done; o.err == nil {
				_ = o.conn.Close() // nobody waits for it any more
			}
		}()
		return nil, ctx.Err()
	}
}

// hostName is a name or an IP address: what programs take for one and for no option.
var hostName = regexp.MustCompile(`^[0-9A-Za-z:][-0-9A-Za-z.:]*$`)

// relayTo returns node/relay.sh with an address in front of it.
func relayTo(address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", err
	}
	if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 || !hostName.MatchString(host) {
		return "", fmt.Errorf("%q is not the host:port of a TCP server", address)
	}
	return fmt.Sprintf("host=%s\nport=%s\nready=%s\n%s", shellQuote(host), shellQuote(port), relayReady, relayScript), nil
}

// openRelay starts the script and returns when the node is connected. The end of ctx
// before that ends it.
func (c *Client) openRelay(ctx context.Context, script string) (*relayConn, error) {
	session, err := c.conn.NewSession()
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = session.Close() })()
	r := &relayConn{session: session, client: c.conn, said: tail.Writer{Limit: maxOutput}, ended: make(chan struct{})}
	if err := r.start(script); err != nil {
		_ = session.Close() // the first error is returned
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		_ = session.Close() // by AfterFunc already
		return nil, err
	}
	return r, nil
}

// relayConn is a connection that a command on the node makes.
type relayConn struct {
	client  *ssh.Client
	session *ssh.Session
	stdin   io.WriteCloser
	stdout  *bufio.Reader
	said    tail.Writer   // what the command wrote to stderr; complete when it has ended
	ended   chan struct{} // closed then
	exit    error         // of the command
}

var _ net.Conn = (*relayConn)(nil)

// start runs the script, without sudo: everybody may connect.
func (r *relayConn) start(script string) (err error) {
	if r.stdin, err = r.session.StdinPipe(); err != nil {
		return err
	}
	stdout, err := r.session.StdoutPipe()
	if err != nil {
		return err
	}
	r.stdout, r.session.Stderr = bufio.NewReader(stdout), &r.said
	if err := r.session.Start("sh -s"); err != nil {
		return err
	}
	go func() {
		r.exit = r.session.Wait()
		close(r.ended)
	}()
	// One command, of which sh has read all before it runs: the rest of stdin is the connection's.
	if _, err := io.WriteString(r.stdin, "eval "+shellQuote(script)+"\n"); err != nil {
		return err
	}
	for {
		line, err := r.stdout.ReadString('\n')
		switch {
		case strings.TrimSpace(line) == relayReady:
			return nil
		case errors.Is(err, io.EOF):
			return r.failure()
		case err != nil:
			return err
		}
	}
}

// failure says why the command has ended.
func (r *relayConn) failure() error {
	<-r.ended
	said := strings.TrimSpace(r.said.String())
	return fmt.Errorf("the SSH server forwards no connections, and a command in its place failed: %s", joinNonEmpty(fmt.Sprint(r.exit), said))
}

// Read implements net.Conn. The end of a command that failed is an error that says why.
func (r *relayConn) Read(p []byte) (int, error) {
	n, err := r.stdout.Read(p)
	if errors.Is(err, io.EOF) {
		if <-r.ended; r.exit != nil {
			return n, r.failure()
		}
	}
	return n, err
}

// Write implements net.Conn.
func (r *relayConn) Write(p []byte) (int, error) { return r.stdin.Write(p) }

// Close implements net.Conn. The command sees the end of its input.
func (r *relayConn) Close() error {
	if err := r.session.Close(); err != nil && !errors.Is(err, io.EOF) { // EOF: closed already
		return err
	}
	return nil
}

// LocalAddr implements net.Conn.
func (r *relayConn) LocalAddr() net.Addr { return r.client.LocalAddr() }

// RemoteAddr implements net.Conn: the node's, which makes the connection.
func (r *relayConn) RemoteAddr() net.Addr { return r.client.RemoteAddr() }

// SetDeadline implements net.Conn. As with forwarded connections, there are none.
func (r *relayConn) SetDeadline(time.Time) error { return os.ErrNoDeadline }

// SetReadDeadline implements net.Conn.
func (r *relayConn) SetReadDeadline(time.Time) error { return os.ErrNoDeadline }

// SetWriteDeadline implements net.Conn.
func (r *relayConn) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }
