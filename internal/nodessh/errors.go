package nodessh

import (
	"errors"
	"fmt"
)

// HostKeyProblem says why a host key was not accepted.
type HostKeyProblem string

// The problems of a host key.
const (
	HostKeyMismatch HostKeyProblem = "mismatch" // another key is known for the host
	HostKeyUnknown  HostKeyProblem = "unknown"  // no key is known for the host
	HostKeyRevoked  HostKeyProblem = "revoked"  // the key is marked @revoked
	HostKeyCert     HostKeyProblem = "cert"     // the host's certificate is not valid, or of no known authority
	HostKeyFile     HostKeyProblem = "file"     // the known_hosts file cannot be used
)

// HostKeyError is a host key that was not accepted. It is permanent.
type HostKeyError struct {
	Problem     HostKeyProblem
	Host        string // as it is written in known_hosts
	File        string // the known_hosts file
	Line        int    // of the known_hosts entry that did not match or revokes the key, 0 if none
	Fingerprint string // SHA256 fingerprint of the presented key, empty if none was presented
	Err         error  // cause, may be nil
}

func (e *HostKeyError) Error() string {
	switch e.Problem {
	case HostKeyMismatch:
		return fmt.Sprintf("host key of %s has changed: it presented %s, but %s:%d holds another key; "+
			"either the machine was re-installed (check it, then delete that line) or someone is between it and Ebb",
			e.Host, e.Fingerprint, e.File, e.Line)
	case HostKeyUnknown:
		return fmt.Sprintf("host key of %s is not known: it presented %s; "+
			"check the fingerprint and add the key to %s, or set ssh.acceptNew to pin unknown hosts",
			e.Host, e.Fingerprint, e.File)
	case HostKeyRevoked:
		return fmt.Sprintf("host key of %s is revoked: it presented %s, which %s:%d marks @revoked; give the machine a new host key",
			e.Host, e.Fingerprint, e.File, e.Line)
	case HostKeyCert:
		return fmt.Sprintf("host certificate of %s is not accepted: it presented %s, and by the @cert-authority lines of %s: %v; "+
			"have the certificate renewed or the authority added", e.Host, e.Fingerprint, e.File, e.Err)
	default:
		return fmt.Sprintf("host key of %s cannot be checked against %q: %v", e.Host, e.File, e.Err)
	}
}

func (e *HostKeyError) Unwrap() error { return e.Err }

// AuthError is a login that the host refused. It is permanent.
type AuthError struct {
	User, Host string
	Err        error
}

func (e *AuthError) Error() string {
	return fmt.Sprintf("%s does not let user %s log in with the configured keys: %v; "+
		"check ssh.user and ssh.identityFile, and authorized_keys on the machine", e.Host, e.User, e.Err)
}

func (e *AuthError) Unwrap() error { return e.Err }

// CredentialError is a private key, certificate, passphrase or ssh-agent that cannot be
// used, or that none is configured. It is permanent.
type CredentialError struct {
	Source string // a path, SSH_AUTH_SOCK, or the user that has none
	Err    error
}

func (e *CredentialError) Error() string { return fmt.Sprintf("ssh key %s: %v", e.Source, e.Err) }

func (e *CredentialError) Unwrap() error { return e.Err }

// AddressError is a node of which no address is known. It is permanent.
type AddressError struct {
	Node string
	Err  error
}

func (e *AddressError) Error() string { return e.Err.Error() }

func (e *AddressError) Unwrap() error { return e.Err }

// SudoError is a sudo that wants a password or refuses. It is permanent.
type SudoError struct {
	Node   string
	Stderr string
}

func (e *SudoError) Error() string {
	return fmt.Sprintf("sudo on node %s does not work without a password: %s; give the ssh user a NOPASSWD rule", e.Node, e.Stderr)
}

// TransportError is a connection that could not be made or was lost. Another try may
// succeed.
type TransportError struct {
	Node string
	Op   string // what was tried
	Err  error
}

func (e *TransportError) Error() string {
	return fmt.Sprintf("ssh to node %s: %s: %v", e.Node, e.Op, e.Err)
}

func (e *TransportError) Unwrap() error { return e.Err }

// RunError is an error that the node reports about a run, for example a full disk.
type RunError struct {
	Node, Message string
}

func (e *RunError) Error() string { return fmt.Sprintf("node %s: %s", e.Node, e.Message) }

// Permanent reports whether another try is certain to fail in the same way: err is an
// address that is not known, or a host key, login, credential or sudo that was refused.
func Permanent(err error) bool {
	var (
		hostKey *HostKeyError
		auth    *AuthError
		keyFile *CredentialError
		sudo    *SudoError
		address *AddressError
	)
	return errors.As(err, &address) || errors.As(err, &hostKey) || errors.As(err, &auth) || errors.As(err, &keyFile) || errors.As(err, &sudo)
}
