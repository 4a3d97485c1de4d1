package nodessh

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

const agentSocket = "SSH_AUTH_SOCK"

var errEncrypted = errors.New("it is encrypted: set ssh.passphraseFile, or use ssh.agent")

// credentials are the keys to offer, in order. Only public keys are ever offered:
// nothing that could ask a question.
type credentials struct {
	signers []ssh.Signer
	agent   io.Closer // nil without an agent
}

func (c credentials) Close() error {
	if c.agent == nil {
		return nil
	}
	return c.agent.Close()
}

func loadCredentials(ctx context.Context, t Target) (credentials, error) {
	var creds credentials
	if t.IdentityFile != "" {
		signers, err := loadIdentity(t)
		if err != nil && (!t.Agent || !errors.Is(err, errEncrypted)) { // the agent may have that key, as for ssh
			return credentials{}, err
		}
		creds.signers = signers
	}
	if t.Agent {
		conn, signers, err := agentSigners(ctx)
		if err != nil {
			return credentials{}, &KeyFileError{File: agentSocket, Err: err}
		}
		creds.agent = conn
		creds.signers = append(creds.signers, signers...)
	}
	if len(creds.signers) == 0 {
		return credentials{}, errors.Join(
			&KeyFileError{File: "of user " + t.User, Err: errors.New("there is none to log in with: set ssh.identityFile, or ssh.agent with a key in it")},
			creds.Close())
	}
	return creds, nil
}

// loadIdentity returns the certificate, if there is one, and the key itself.
func loadIdentity(t Target) ([]ssh.Signer, error) {
	pem, err := readPrivate(t.IdentityFile)
	if err != nil {
		return nil, err
	}
	key, err := parseKey(pem, t)
	if err != nil {
		return nil, err
	}
	if t.CertificateFile == "" {
		return []ssh.Signer{key}, nil
	}
	text, err := os.ReadFile(t.CertificateFile)
	if err != nil {
		return nil, &KeyFileError{File: t.CertificateFile, Err: err}
	}
	public, _, _, _, err := ssh.ParseAuthorizedKey(text)
	if err != nil {
		return nil, &KeyFileError{File: t.CertificateFile, Err: err}
	}
	cert, ok := public.(*ssh.Certificate)
	if !ok {
		return nil, &KeyFileError{File: t.CertificateFile, Err: errors.New("it is a plain public key, not a certificate")}
	}
	signer, err := ssh.NewCertSigner(cert, key)
	if err != nil {
		return nil, &KeyFileError{File: t.CertificateFile, Err: fmt.Errorf("it does not belong to %s: %w", t.IdentityFile, err)}
	}
	return []ssh.Signer{signer, key}, nil
}

func parseKey(pem []byte, t Target) (ssh.Signer, error) {
	key, err := ssh.ParsePrivateKey(pem)
	var missing *ssh.PassphraseMissingError
	if errors.As(err, &missing) {
		if t.PassphraseFile == "" {
			return nil, &KeyFileError{File: t.IdentityFile, Err: errEncrypted}
		}
		passphrase, readErr := readPrivate(t.PassphraseFile)
		if readErr != nil {
			return nil, readErr
		}
		key, err = ssh.ParsePrivateKeyWithPassphrase(pem, bytes.TrimRight(passphrase, "\r\n"))
		if errors.Is(err, x509.IncorrectPasswordError) {
			err = fmt.Errorf("the passphrase in %s is wrong", t.PassphraseFile)
		}
	}
	if err != nil {
		return nil, &KeyFileError{File: t.IdentityFile, Err: err}
	}
	return key, nil
}

// readPrivate reads a file that nobody else may read. Like ssh it refuses an own
// file with a looser mode; other people's files (a mounted secret) are their care.
func readPrivate(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, &KeyFileError{File: path, Err: err}
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if ok && int(owner.Uid) == os.Getuid() && info.Mode().Perm()&0o077 != 0 {
		return nil, &KeyFileError{File: path, Err: fmt.Errorf("its mode %#o lets others read it: chmod 600 it", info.Mode().Perm())}
	}
	content, err := os.ReadFile(path) // #nosec G304 -- the path is configuration
	if err != nil {
		return nil, &KeyFileError{File: path, Err: err}
	}
	return content, nil
}

func agentSigners(ctx context.Context) (net.Conn, []ssh.Signer, error) {
	socket := os.Getenv(agentSocket)
	if socket == "" {
		return nil, nil, errors.New("it is not set, so there is no ssh-agent")
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, nil, fmt.Errorf("ssh-agent does not answer: %w", err)
	}
	// A stuck agent is cut off with the context.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // best effort
	defer stop()
	signers, err := agent.NewClient(conn).Signers()
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("ssh-agent does not list its keys: %w", err), conn.Close())
	}
	return conn, signers, nil
}
