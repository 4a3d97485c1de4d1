package lab

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/ssh"
)

// Identity returns the private key of the user on every machine.
func (l *Lab) Identity() string { return l.Path("id") }

// createIdentity makes the key that every machine lets in.
func (l *Lab) createIdentity() error { return createKey(l.Identity(), l.Identity()+".pub") }

// createKeys gives a machine its host key, and lets the lab's user in.
func (m *Machine) createKeys() error {
	allowed, err := read(m.lab.Identity() + ".pub")
	if err != nil {
		return err
	}
	host := m.path("seed/etc/ssh/ssh_host_ed25519_key")
	return errors.Join(createKey(host, host+".pub"), write(m.path("seed/etc/ssh/authorized_keys"), allowed+"\n", 0o644))
}

// HostKeys are known_hosts lines for the machine, under all of its addresses.
func (m *Machine) HostKeys() (string, error) {
	key, err := read(m.path("seed/etc/ssh/ssh_host_ed25519_key.pub"))
	return KnownHost(m, key), err
}

// KnownHost returns the known_hosts line that gives a machine a key, in the form of a .pub file.
func KnownHost(m *Machine, key string) string {
	return fmt.Sprintf("%s,[%s]:%d %s\n", m.Address(), Gateway, m.ForwardedPort(), key)
}

// NewKey returns the public half of a key that nobody has, in the form of a .pub file.
func NewKey() (string, error) {
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", err
	}
	return marshalAuthorizedKey(public)
}

func createKey(private, public string) error {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	block, err := ssh.MarshalPrivateKey(key, "lab")
	if err != nil {
		return err
	}
	line, err := marshalAuthorizedKey(pub)
	if err != nil {
		return err
	}
	return errors.Join(write(private, string(pem.EncodeToMemory(block)), 0o600), write(public, line+"\n", 0o644))
}

func marshalAuthorizedKey(public ed25519.PublicKey) (string, error) {
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))), nil
}
