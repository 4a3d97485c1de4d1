package api

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.yaml.in/yaml/v3"
)

const (
	// tokenPrefix lets a person, and a scanner for leaked secrets, know one.
	tokenPrefix = "ebb_"
	tokenBytes  = 32
	// maxTokens bounds the tokens file, in bytes: thousands of tokens fit.
	maxTokens = 1 << 20
)

// NewToken makes a token, of 256 random bits, and the hash that the tokens file
// keeps of it. A slow hash would protect words that people think up; nobody
// guesses 256 random bits.
func NewToken() (token, hash string, err error) {
	var secret [tokenBytes]byte
	if _, err := rand.Read(secret[:]); err != nil {
		return "", "", fmt.Errorf("make a token: %w", err)
	}
	token = tokenPrefix + base64.RawURLEncoding.EncodeToString(secret[:])
	return token, hashOf(token), nil
}

func hashOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// tokenEntry is one token of the tokens file.
type tokenEntry struct {
	Name     string   `yaml:"name"`
	SHA256   string   `yaml:"sha256"`
	Role     Role     `yaml:"role"`
	Clusters []string `yaml:"clusters"`
}

// TokenLine is the entry of a new token, for the list "tokens:" of the tokens file.
// The error lists what is wrong with it.
func TokenLine(name, hash string, role Role, clusters []string) (string, error) {
	entry := tokenEntry{Name: name, SHA256: hash, Role: role, Clusters: clusters}
	if faults := entry.faults(); len(faults) > 0 {
		return "", errors.New(strings.Join(faults, "; "))
	}
	quoted := make([]string, len(clusters))
	for i, c := range clusters {
		quoted[i] = fmt.Sprintf("%q", c)
	}
	return fmt.Sprintf("  - {name: %q, sha256: %s, role: %s, clusters: [%s]}", name, hash, role, strings.Join(quoted, ", ")), nil
}

func (e tokenEntry) faults() (faults []string) {
	fault := func(wrong bool, format string, args ...any) {
		if wrong {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	sum, err := hex.DecodeString(e.SHA256)
	fault(e.Name == "", "a token needs a name: who uses it")
	fault(err != nil || len(sum) != sha256.Size, "sha256 must be the 64 hexadecimal digits that `ebb-gateway token` prints")
	fault(!slices.Contains(Roles(), e.Role), "role must be viewer, operator or admin, not %q", e.Role)
	fault(len(e.Clusters) == 0, `clusters must name clusters, or be ["*"] for all`)
	fault(slices.Contains(e.Clusters, ""), "a cluster's name is empty")
	return faults
}

// Tokens knows the tokens of a file, which is read again when it has changed.
type Tokens struct {
	path string
	log  *zap.Logger
	now  func() time.Time

	mu      sync.Mutex
	looked  time.Time
	data    []byte
	entries []known // the last good version
	fault   string  // why the file as it is now is not in use
}

var _ Authenticator = (*Tokens)(nil)

type known struct {
	sum       []byte
	principal *Principal
}

// OpenTokens reads the file for the first time; it must be good.
func OpenTokens(path string, log *zap.Logger) (*Tokens, error) {
	t := &Tokens{path: path, log: log, now: time.Now}
	data, err := readTokens(path)
	if err != nil {
		return nil, err
	}
	if t.entries, err = parseTokens(path, data); err != nil {
		return nil, err
	}
	t.data, t.looked = data, t.now()
	return t, nil
}

// Authenticate implements Authenticator.
func (t *Tokens) Authenticate(_ context.Context, token string) (*Principal, error) {
	if !strings.HasPrefix(token, tokenPrefix) {
		return nil, errNotMine
	}
	sum := sha256.Sum256([]byte(token))
	var found *Principal
	for _, k := range t.current() { // all of them, so that the time tells nothing
		if subtle.ConstantTimeCompare(sum[:], k.sum) == 1 {
			found = k.principal
		}
	}
	if found == nil {
		return nil, &TokenError{Reason: "the token is not known here (any more)"}
	}
	return found, nil
}

// current are the tokens as the file has them now. When it has become unreadable or
// wrong, the last good version stays in use, and the log says why, once.
func (t *Tokens) current() []known {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.now(); now.Sub(t.looked) >= recheck {
		t.looked = now
		t.refresh()
	}
	return t.entries
}

func (t *Tokens) refresh() {
	data, err := readTokens(t.path)
	if err == nil && bytes.Equal(data, t.data) {
		t.fault = ""
		return
	}
	var entries []known
	if err == nil {
		entries, err = parseTokens(t.path, data)
	}
	if err != nil {
		if t.fault != err.Error() {
			t.log.Error("the tokens file is broken, its last good version stays in use", zap.Error(err))
		}
		t.fault = err.Error()
		return
	}
	t.data, t.entries, t.fault = data, entries, ""
	t.log.Info("tokens read again", zap.String("file", t.path), zap.Int("tokens", len(entries)))
}

// readTokens refuses a file that others could put their own tokens into.
func readTokens(path string) ([]byte, error) {
	file, err := os.Open(path) // #nosec G304 G703 -- the operator's own path
	if err != nil {
		return nil, fmt.Errorf("open the tokens file: %w", err)
	}
	defer func() { _ = file.Close() }() // only read from
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("look at the tokens file: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		return nil, fmt.Errorf("the tokens file %s may be written by others than its owner (mode %04o): chmod go-w %s", path, mode, path)
	}
	data, err := io.ReadAll(io.LimitReader(file, maxTokens+1))
	if err != nil {
		return nil, fmt.Errorf("read the tokens file: %w", err)
	}
	if len(data) > maxTokens {
		return nil, fmt.Errorf("the tokens file %s is larger than %d bytes", path, maxTokens)
	}
	return data, nil
}

// parseTokens reports everything that is wrong with a tokens file.
func parseTokens(path string, data []byte) ([]known, error) {
	var file struct {
		Tokens []tokenEntry `yaml:"tokens"`
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("tokens file %s: %w", path, err)
	}
	var (
		entries []known
		faults  []string
		names   = map[string]bool{}
		sums    = map[string]bool{}
	)
	for i, e := range file.Tokens {
		found := e.faults()
		if names[e.Name] {
			found = append(found, fmt.Sprintf("the name %q is used twice", e.Name))
		}
		if sums[strings.ToLower(e.SHA256)] {
			found = append(found, "the same token is there already")
		}
		names[e.Name], sums[strings.ToLower(e.SHA256)] = true, true
		for _, fault := range found {
			faults = append(faults, fmt.Sprintf("tokens[%d]: %s", i, fault))
		}
		sum, _ := hex.DecodeString(e.SHA256) // checked above
		entries = append(entries, known{sum: sum, principal: &Principal{Name: e.Name, Source: SourceToken, Grants: []Grant{{Role: e.Role, Clusters: e.Clusters}}}})
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("tokens file %s: %s", path, strings.Join(faults, "; "))
	}
	return entries, nil
}
