package nodessh

import (
	"context"
	"errors"
	"io"
	"strings"

	"golang.org/x/crypto/ssh"

	"ebb/internal/tail"
)

// maxOutput is how much of each stream Exec keeps, in bytes.
const maxOutput = 64 << 10

// Exec runs a shell script on the node and returns the last 64 KiB of each of its
// outputs and its exit code; stdin is empty. The error is a *TransportError. When ctx
// ends the session is closed, and processes that the script has started may go on.
func (c *Client) Exec(ctx context.Context, script string) (stdout, stderr string, exit int, err error) {
	out, errOut := tail.Writer{Limit: maxOutput}, tail.Writer{Limit: maxOutput}
	exit, err = c.runSession(ctx, script, &out, &errOut)
	return out.String(), errOut.String(), exit, err
}

// runSession runs a script without a terminal and returns its exit code. After the end
// of ctx the writers may still be written to, until the connection ends.
func (c *Client) runSession(ctx context.Context, script string, stdout, stderr io.Writer) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, c.target.transportError(ctx, "run a script", err)
	}
	opened := make(chan *ssh.Session, 1)
	result := make(chan error, 1)
	go func() {
		defer close(opened)
		session, err := c.conn.NewSession()
		if err != nil {
			result <- err
			return
		}
		defer func() { _ = session.Close() }() // fails only when it is closed already
		if err := ctx.Err(); err != nil {
			result <- err
			return
		}
		opened <- session
		session.Stdin = strings.NewReader(wrapScript(script))
		session.Stdout, session.Stderr = stdout, stderr
		result <- session.Run(c.target.shellCommand())
	}()
	select {
	case err := <-result:
		return c.exitCode(ctx, err)
	case <-ctx.Done():
		go terminateSession(opened)
		return 0, c.target.transportError(ctx, "run a script", ctx.Err())
	}
}

// terminateSession ends a session whose caller has stopped waiting.
func terminateSession(opened <-chan *ssh.Session) {
	session, ok := <-opened
	if !ok {
		return // it was never opened
	}
	// Best effort, both: not every server passes signals on.
	_ = session.Signal(ssh.SIGTERM)
	_ = session.Close()
}

func (c *Client) exitCode(ctx context.Context, err error) (int, error) {
	var exitErr *ssh.ExitError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &exitErr):
		return exitErr.ExitStatus(), nil // 128 + number when a signal ended it
	default:
		return 0, c.target.transportError(ctx, "run a script", err)
	}
}

// shellCommand returns the command that reads the script from stdin. Without a terminal
// and with -n, sudo fails instead of asking for a password.
func (t Target) shellCommand() string {
	if t.Sudo {
		return "sudo -n sh -s"
	}
	return "sh -s"
}

// nodePath lets scripts, and what they start, find the programs of a node. Neither sshd nor
// sudo nor systemd has /opt/bin on PATH, where nodes without a package manager (Flatcar,
// CloudStack's Kubernetes service) keep kubeadm, kubelet and kubectl. A node that keeps
// them elsewhere has EBB_OPT_DIR in its environment.
const nodePath = "PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:${EBB_OPT_DIR:-/opt}/bin\nexport PATH\n"

// wrapScript returns the script as one eval command: sh has then read all of it before
// a command of the script could read stdin.
func wrapScript(script string) string {
	return "eval " + shellQuote(nodePath+script) + " </dev/null\n"
}

// shellQuote returns text, which must not hold NUL, as one quoted word of sh.
func shellQuote(text string) string {
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
