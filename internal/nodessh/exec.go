package nodessh

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"
)

// outputLimit is how much of each stream Exec keeps, in bytes.
const outputLimit = 64 << 10

// Exec runs a shell script on the node and returns the last 64 KiB of each of its
// outputs and its exit code. What the script runs reads an empty input. The error
// is a *TransportError; when ctx ends the session is closed, and what the script
// has started may live on.
func (c *Client) Exec(ctx context.Context, script string) (stdout, stderr string, exit int, err error) {
	var out, errOut tail
	exit, err = c.session(ctx, script, &out, &errOut)
	return out.String(), errOut.String(), exit, err
}

// session runs a script without a terminal. The writers may be written to until
// the connection ends, even after a cancelled ctx has made session return.
func (c *Client) session(ctx context.Context, script string, stdout, stderr io.Writer) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, c.target.lost(ctx, "run a script", err)
	}
	opened := make(chan *ssh.Session, 1)
	finished := make(chan error, 1)
	go func() {
		defer close(opened)
		session, err := c.conn.NewSession()
		if err != nil {
			finished <- err
			return
		}
		defer func() { _ = session.Close() }() // says only that it is closed already
		if err := ctx.Err(); err != nil {
			finished <- err
			return
		}
		opened <- session
		session.Stdin = strings.NewReader(asInput(script))
		session.Stdout, session.Stderr = stdout, stderr
		finished <- session.Run(c.target.shell())
	}()
	select {
	case err := <-finished:
		return c.exitCode(ctx, err)
	case <-ctx.Done():
		go abandon(opened)
		return 0, c.target.lost(ctx, "run a script", ctx.Err())
	}
}

// abandon asks the node to end a session that nobody waits for any more.
func abandon(opened <-chan *ssh.Session) {
	session, ok := <-opened
	if !ok {
		return // it was never opened
	}
	// Best effort, both: not every server passes signals on.
	_ = session.Signal(ssh.SIGTERM)
	_ = session.Close()
}

func (c *Client) exitCode(ctx context.Context, err error) (int, error) {
	var ended *ssh.ExitError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &ended):
		return ended.ExitStatus(), nil // 128 + number when a signal ended it
	default:
		return 0, c.target.lost(ctx, "run a script", err)
	}
}

// shell is the command that reads the script. Without a terminal and with -n,
// sudo fails where it would ask for a password.
func (t Target) shell() string {
	if t.Sudo {
		return "sudo -n sh -s"
	}
	return "sh -s"
}

// asInput wraps a script as one eval, so that sh has read all of it before any
// command could take the rest of it for its own input.
func asInput(script string) string {
	return "eval " + quote(script) + " </dev/null\n"
}

// quote makes one word of the shell out of any text without NUL.
func quote(text string) string {
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	data []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, p...)
	// Trimmed at twice the limit, so that long outputs are not copied for each write.
	if len(t.data) > 2*outputLimit {
		t.data = append([]byte(nil), t.data[len(t.data)-outputLimit:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.data[max(0, len(t.data)-outputLimit):])
}

// Dial connects from the node to an address, host:port as the node sees it. It
// needs a server that allows TCP forwarding (sshd's default); the error is a
// *TransportError.
func (c *Client) Dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := c.conn.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, c.target.lost(ctx, "connect to "+address, err)
	}
	return conn, nil
}
