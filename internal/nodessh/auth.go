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

const agentSocketEnv = "SSH_AUTH_SOCK"

var errKeyEncrypted = errors.New("it is encrypted: set ssh.passphraseFile, or use ssh.agent")

// credentials are the keys to offer, in order. Only public key authentication is
// used: no method that could prompt for something.
type credentials struct {
	signers   []ssh.Signer
	agentConn io.Closer // nil without an agent
}

func (c credentials) Close() error {
	if c.agentConn == nil {
		return nil
	}
	return c.agentConn.Close()
}

// loadCredentials returns the keys of the identity file and of the agent. Its errors
// are *CredentialError: nothing that can be read again would help.
func loadCredentials(ctx context.Context, t Target) (credentials, error) {
	var creds credentials
	if t.IdentityFile != "" {
		signers, err := loadIdentity(t)
		if err != nil && (!t.Agent || !errors.Is(err, errKeyEncrypted)) { // like ssh: the agent may hold the encrypted key
			return credentials{}, err
		}
		creds.signers = signers
	}
	if t.Agent {
		conn, signers, err := agentSigners(ctx)
		if err != nil {
			return credentials{}, &CredentialError{Source: agentSocketEnv, Err: err}
		}
		creds.agentConn = conn
		creds.signers = append(creds.signers, signers...)
	}
	if len(creds.signers) == 0 {
		return credentials{}, errors.Join(
			&CredentialError{Source: "of user " + t.User, Err: errors.New("there is none to log in with: set ssh.identityFile, or ssh.agent with a key in it")},
			creds.Close())
	}
	return creds, nil
}

// loadIdentity returns the certificate, if there is one, and the key itself.
func loadIdentity(t Target) ([]ssh.Signer, error) {
	pem, err := readPrivateFile(t.IdentityFile)
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
		return nil, &CredentialError{Source: t.CertificateFile, Err: err}
	}
	public, _, _, _, err := ssh.ParseAuthorizedKey(text)
	if err != nil {
		return nil, &CredentialError{Source: t.CertificateFile, Err: err}
	}
	cert, ok := public.(*ssh.Certificate)
	if !ok {
		return nil, &CredentialError{Source: t.CertificateFile, Err: errors.New("it is a plain public key, not a certificate")}
	}
	signer, err := ssh.NewCertSigner(cert, key)
	if err != nil {
		return nil, &CredentialError{Source: t.CertificateFile, Err: fmt.Errorf("it does not belong to %s: %w", t.IdentityFile, err)}
	}
	return []ssh.Signer{signer, key}, nil
}

// parseKey returns the private key in pem, decrypted with the passphrase file if need be.
func parseKey(pem []byte, t Target) (ssh.Signer, error) {
	key, err := ssh.ParsePrivateKey(pem)
	var missing *ssh.PassphraseMissingError
	if errors.As(err, &missing) {
		if t.PassphraseFile == "" {
			return nil, &CredentialError{Source: t.IdentityFile, Err: errKeyEncrypted}
		}
		passphrase, readErr := readPrivateFile(t.PassphraseFile)
		if readErr != nil {
			return nil, readErr
		}
		key, err = ssh.ParsePrivateKeyWithPassphrase(pem, bytes.TrimRight(passphrase, "\r\n"))
		if errors.Is(err, x509.IncorrectPasswordError) {
			err = fmt.Errorf("the passphrase in %s is wrong", t.PassphraseFile)
		}
	}
	if err != nil {
		return nil, &CredentialError{Source: t.IdentityFile, Err: err}
	}
	return key, nil
}

// readPrivateFile returns the content of a key or passphrase file. Like ssh, it fails
// when the file belongs to this process's user and others may read it (mode & 077);
// the mode of a file of another user, such as a mounted secret, is not checked.
func readPrivateFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, &CredentialError{Source: path, Err: err}
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if ok && int(owner.Uid) == os.Getuid() && info.Mode().Perm()&0o077 != 0 {
		return nil, &CredentialError{Source: path, Err: fmt.Errorf("its mode %#o lets others read it: chmod 600 it", info.Mode().Perm())}
	}
	content, err := os.ReadFile(path) // #nosec G304 -- the path is configuration
	if err != nil {
		return nil, &CredentialError{Source: path, Err: err}
	}
	return content, nil
}

// agentSigners returns the keys of the ssh-agent at SSH_AUTH_SOCK. The connection has
// to stay open for as long as they are used.
func agentSigners(ctx context.Context) (net.Conn, []ssh.Signer, error) {
	socket := os.Getenv(agentSocketEnv)
	if socket == "" {
		return nil, nil, errors.New("it is not set, so there is no ssh-agent")
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, nil, fmt.Errorf("ssh-agent does not answer: %w", err)
	}
	// Closing the connection ends a call to an agent that does not answer.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // best effort
	defer stop()
	signers, err := agent.NewClient(conn).Signers()
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("ssh-agent does not list its keys: %w", err), conn.Close())
	}
	return conn, signers, nil
}
