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

// hostKeys verifies the keys of hosts against one known_hosts file, which is read
// anew for every connection, so that a corrected file works at once.
type hostKeys struct {
	file      string
	acceptNew bool
}

// open reads the file; with acceptNew it is made when it is missing.
func (h hostKeys) open(host string) (ssh.HostKeyCallback, error) {
	if h.file == "" {
		return nil, &HostKeyError{Problem: HostKeyFile, Host: host, Err: errors.New("ssh.knownHosts is not set")}
	}
	check, err := knownhosts.New(h.file)
	if errors.Is(err, fs.ErrNotExist) && h.acceptNew {
		if err = h.create(); err == nil {
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

func (h hostKeys) create() error {
	if err := os.MkdirAll(filepath.Dir(h.file), 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(h.file, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return file.Close()
}

// verify judges the key that a host presented. The key of an unknown host is
// pinned when that is allowed.
func (h hostKeys) verify(address string, remote net.Addr, key ssh.PublicKey) error {
	host := knownhosts.Normalize(address)
	check, err := h.open(host)
	if err != nil {
		return err
	}
	verdict := h.judge(host, key, check(address, remote, key))
	if verdict == nil || verdict.Problem != HostKeyUnknown || !h.acceptNew {
		if verdict == nil {
			return nil
		}
		return verdict
	}
	return h.pin(address, remote, key)
}

// judge turns the answer of the knownhosts package into a HostKeyError, nil = accepted.
func (h hostKeys) judge(host string, key ssh.PublicKey, err error) *HostKeyError {
	if err == nil {
		return nil
	}
	verdict := &HostKeyError{Problem: HostKeyFile, Host: host, File: h.file, Fingerprint: ssh.FingerprintSHA256(key), Err: err}
	var (
		unknown *knownhosts.KeyError
		revoked *knownhosts.RevokedError
	)
	switch {
	case errors.As(err, &revoked):
		verdict.Problem, verdict.Line = HostKeyRevoked, revoked.Revoked.Line
	case errors.As(err, &unknown) && len(unknown.Want) == 0:
		verdict.Problem = HostKeyUnknown
	case errors.As(err, &unknown):
		verdict.Problem, verdict.Line = HostKeyMismatch, decidingLine(unknown.Want, key)
	default:
		if _, isCert := key.(*ssh.Certificate); isCert {
			verdict.Problem = HostKeyCert
		}
	}
	return verdict
}

// decidingLine prefers the known key of the presented key's type.
func decidingLine(want []knownhosts.KnownKey, key ssh.PublicKey) int {
	for _, known := range want {
		if known.Key.Type() == key.Type() {
			return known.Line
		}
	}
	return want[0].Line
}

// pin appends the key of a host that is still unknown when the file is locked:
// another connection, or another worker, may have pinned one meanwhile.
func (h hostKeys) pin(address string, remote net.Addr, key ssh.PublicKey) (err error) {
	host := knownhosts.Normalize(address)
	broken := func(err error) error {
		return &HostKeyError{Problem: HostKeyFile, Host: host, File: h.file, Fingerprint: ssh.FingerprintSHA256(key), Err: err}
	}
	file, err := os.OpenFile(h.file, os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return broken(err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	// The lock goes with the descriptor when the file is closed.
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		return broken(fmt.Errorf("lock: %w", err))
	}
	check, err := knownhosts.New(h.file)
	if err != nil {
		return broken(err)
	}
	verdict := h.judge(host, key, check(address, remote, key))
	if verdict == nil {
		return nil
	}
	if verdict.Problem != HostKeyUnknown {
		return verdict
	}
	line := knownhosts.Line([]string{address}, key) + "\n"
	if needsNewline(file) {
		line = "\n" + line
	}
	// One write, so that nobody reads half a line.
	if _, err := file.WriteString(line); err != nil {
		return broken(err)
	}
	if err := file.Sync(); err != nil {
		return broken(err)
	}
	return nil
}

func needsNewline(file *os.File) bool {
	info, err := file.Stat()
	if err != nil || info.Size() == 0 {
		return false
	}
	last := make([]byte, 1)
	_, err = file.ReadAt(last, info.Size()-1)
	return err == nil && last[0] != '\n'
}

// algorithms orders what to ask the host for: first the kinds of key that
// known_hosts has for it, since a host with several keys shows only one of them.
func (h hostKeys) algorithms(address string, check ssh.HostKeyCallback) []string {
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
	authorities := h.authorityLines()
	var first []string
	for _, want := range known.Want {
		if authorities[want.Line] {
			// An authority signs keys of any kind.
			for _, algorithm := range all {
				if strings.Contains(algorithm, "-cert-v01@") {
					first = append(first, algorithm)
				}
			}
			continue
		}
		first = append(first, keyAlgorithms(want.Key.Type())...)
	}
	return unique(append(first, plain...))
}

// keyAlgorithms are the signature algorithms of a kind of key, best first.
func keyAlgorithms(keyType string) []string {
	if keyType == ssh.KeyAlgoRSA {
		return []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}
	}
	return []string{keyType}
}

func unique(in []string) []string {
	var out []string
	for _, s := range in {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// probeKey is a key that no host has: asking for it yields what is known instead.
func probeKey() ssh.PublicKey {
	key, err := ssh.NewPublicKey(ed25519.PublicKey(make([]byte, ed25519.PublicKeySize)))
	if err != nil {
		panic(err) // the size is right
	}
	return key
}

// authorityLines are the numbers of the @cert-authority lines, which the
// knownhosts package does not tell apart from plain keys.
func (h hostKeys) authorityLines() map[int]bool {
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
