package nodessh

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

// hostKeyVerifier verifies host keys against one known_hosts file. The file is read for
// every connection, so that a change takes effect at once.
type hostKeyVerifier struct {
	file      string
	acceptNew bool
}

// loadKnownHosts returns the check of keys against the file. With acceptNew a missing
// file is created. The error is a *HostKeyError.
func (h hostKeyVerifier) loadKnownHosts(host string) (ssh.HostKeyCallback, error) {
	if h.file == "" {
		return nil, &HostKeyError{Problem: HostKeyFile, Host: host, Err: errors.New("ssh.knownHosts is not set")}
	}
	check, err := knownhosts.New(h.file)
	if errors.Is(err, fs.ErrNotExist) && h.acceptNew {
		if err = h.createKnownHosts(); err == nil {
			check, err = knownhosts.New(h.file)
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w; make it with ssh-keyscan and check the fingerprints, or set ssh.acceptNew", err)
	}
	if err != nil {
		return nil, &HostKeyError{Problem: HostKeyFile, Host: host, File: h.file, Err: err}
	}
	return check, nil
}

func (h hostKeyVerifier) createKnownHosts() error {
	if err := os.MkdirAll(filepath.Dir(h.file), 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(h.file, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return file.Close()
}

// verify returns nil when the key that a host presented is accepted, else a
// *HostKeyError. With acceptNew it adds the key of an unknown host to the file.
func (h hostKeyVerifier) verify(address string, remote net.Addr, key ssh.PublicKey) error {
	host := knownhosts.Normalize(address)
	check, err := h.loadKnownHosts(host)
	if err != nil {
		return err
	}
	keyErr := h.classify(host, key, check(address, remote, key))
	if keyErr == nil || keyErr.Problem != HostKeyUnknown || !h.acceptNew {
		if keyErr == nil {
			return nil
		}
		return keyErr
	}
	return h.pin(address, remote, key)
}

// classify returns the error of the knownhosts package as a HostKeyError, nil for nil.
func (h hostKeyVerifier) classify(host string, key ssh.PublicKey, err error) *HostKeyError {
	if err == nil {
		return nil
	}
	keyErr := &HostKeyError{Problem: HostKeyFile, Host: host, File: h.file, Fingerprint: ssh.FingerprintSHA256(key), Err: err}
	var (
		unknown *knownhosts.KeyError
		revoked *knownhosts.RevokedError
	)
	switch {
	case errors.As(err, &revoked):
		keyErr.Problem, keyErr.Line = HostKeyRevoked, revoked.Revoked.Line
	case errors.As(err, &unknown) && len(unknown.Want) == 0:
		keyErr.Problem = HostKeyUnknown
	case errors.As(err, &unknown):
		keyErr.Problem, keyErr.Line = HostKeyMismatch, knownKeyLine(unknown.Want, key)
	default:
		if _, isCert := key.(*ssh.Certificate); isCert {
			keyErr.Problem = HostKeyCert
		}
	}
	return keyErr
}

// knownKeyLine returns the line of the known key to show in an error: one of the same
// type as the presented key if there is one.
func knownKeyLine(want []knownhosts.KnownKey, key ssh.PublicKey) int {
	for _, known := range want {
		if known.Key.Type() == key.Type() {
			return known.Line
		}
	}
	return want[0].Line
}

// pin appends a host's key to the file. It takes the file's lock and checks again
// first, because another connection or worker may have added a key meanwhile.
func (h hostKeyVerifier) pin(address string, remote net.Addr, key ssh.PublicKey) (err error) {
	host := knownhosts.Normalize(address)
	fileError := func(err error) error {
		return &HostKeyError{Problem: HostKeyFile, Host: host, File: h.file, Fingerprint: ssh.FingerprintSHA256(key), Err: err}
	}
	file, err := os.OpenFile(h.file, os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return fileError(err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	// Closing the file releases the lock.
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		return fileError(fmt.Errorf("lock: %w", err))
	}
	check, err := knownhosts.New(h.file)
	if err != nil {
		return fileError(err)
	}
	keyErr := h.classify(host, key, check(address, remote, key))
	if keyErr == nil {
		return nil
	}
	if keyErr.Problem != HostKeyUnknown {
		return keyErr
	}
	line := knownhosts.Line([]string{address}, key) + "\n"
	if needsNewline(file) {
		line = "\n" + line
	}
	// One write, so that no reader sees half a line.
	if _, err := file.WriteString(line); err != nil {
		return fileError(err)
	}
	if err := file.Sync(); err != nil {
		return fileError(err)
	}
	return nil
}

// needsNewline reports whether the file's last line is not terminated.
func needsNewline(file *os.File) bool {
	info, err := file.Stat()
	if err != nil || info.Size() == 0 {
		return false
	}
	last := make([]byte, 1)
	_, err = file.ReadAt(last, info.Size()-1)
	return err == nil && last[0] != '\n'
}

// hostKeyAlgorithms returns the host key algorithms in order of preference: first those
// of the keys that known_hosts has for the host, because a host with several keys
// presents only one of them.
func (h hostKeyVerifier) hostKeyAlgorithms(address string, check ssh.HostKeyCallback) []string {
	all := ssh.SupportedAlgorithms().HostKeys
	var plain []string
	for _, algorithm := range all {
		if !strings.Contains(algorithm, "-cert-v01@") {
			plain = append(plain, algorithm)
		}
	}
	var known *knownhosts.KeyError
	if !errors.As(check(address, &net.TCPAddr{}, probeKey()), &known) || len(known.Want) == 0 {
		return plain
	}
	certAuthorities := h.certAuthorityLines()
	var first []string
	for _, want := range known.Want {
		if certAuthorities[want.Line] {
			// A certificate authority signs keys of every type.
			for _, algorithm := range all {
				if strings.Contains(algorithm, "-cert-v01@") {
					first = append(first, algorithm)
				}
			}
			continue
		}
		first = append(first, signatureAlgorithms(want.Key.Type())...)
	}
	return deduplicate(append(first, plain...))
}

// signatureAlgorithms returns the signature algorithms of a kind of key, best first.
func signatureAlgorithms(keyType string) []string {
	if keyType == ssh.KeyAlgoRSA {
		return []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}
	}
	return []string{keyType}
}

func deduplicate(in []string) []string {
	var out []string
	for _, s := range in {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// probeKey returns a key that no host has. Checking it makes the knownhosts package
// return the keys that it knows for the host.
func probeKey() ssh.PublicKey {
	key, err := ssh.NewPublicKey(ed25519.PublicKey(make([]byte, ed25519.PublicKeySize)))
	if err != nil {
		panic(err) // the size is right
	}
	return key
}

// certAuthorityLines returns the line numbers of the @cert-authority entries, which
// knownhosts.KnownKey does not tell from plain keys.
func (h hostKeyVerifier) certAuthorityLines() map[int]bool {
	text, err := os.ReadFile(h.file)
	if err != nil {
		return nil
	}
	lines := make(map[int]bool)
	scanner := bufio.NewScanner(bytes.NewReader(text))
	for number := 1; scanner.Scan(); number++ {
		if strings.HasPrefix(strings.TrimSpace(scanner.Text()), "@cert-authority") {
			lines[number] = true
		}
	}
	return lines
}
