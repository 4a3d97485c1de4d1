package auth

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
	// tokenPrefix makes a token recognisable for people and for secret scanners.
	tokenPrefix = "ebb_"
	tokenBytes  = 32
	// maxFileBytes fits thousands of tokens.
	maxFileBytes = 1 << 20
)

// NewToken returns a token of 256 random bits, and the SHA-256 that the tokens file
// keeps of it. A slow password hash is not needed, because such a token cannot be
// guessed.
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

// TokenFileEntry returns the line for a token in the list "tokens:" of the tokens file.
// The error lists everything that is wrong with the arguments.
func TokenFileEntry(name, hash string, role Role, clusters []string) (string, error) {
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

// faults returns everything that is wrong with an entry.
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

// TokenFile accepts the tokens in a file, and reloads it when it has changed.
type TokenFile struct {
	path string
	log  *zap.Logger
	now  func() time.Time

	mu        sync.Mutex
	checkedAt time.Time
	data      []byte
	records   []tokenRecord // from the last valid version of the file
	lastError string        // why the file could not be reloaded; "" = it is loaded
}

var _ Authenticator = (*TokenFile)(nil)

type tokenRecord struct {
	hash      []byte
	principal *Principal
}

// OpenTokenFile loads a tokens file. The error lists everything that is wrong with it.
func OpenTokenFile(path string, log *zap.Logger) (*TokenFile, error) {
	t := &TokenFile{path: path, log: log, now: time.Now}
	data, err := readTokenFile(path)
	if err != nil {
		return nil, err
	}
	if t.records, err = parseTokenFile(path, data); err != nil {
		return nil, err
	}
	t.data, t.checkedAt = data, t.now()
	return t, nil
}

// Authenticate implements Authenticator.
func (t *TokenFile) Authenticate(_ context.Context, token string) (*Principal, error) {
	if !strings.HasPrefix(token, tokenPrefix) {
		return nil, errNotRecognized
	}
	sum := sha256.Sum256([]byte(token))
	var found *Principal
	for _, k := range t.currentRecords() { // all of them, in constant time
		if subtle.ConstantTimeCompare(sum[:], k.hash) == 1 {
			found = k.principal
		}
	}
	if found == nil {
		return nil, &TokenError{Reason: "the token is not known here (any more)"}
	}
	return found, nil
}

// currentRecords returns the tokens of the file. While the file cannot be read or is
// not valid, the last valid version stays in use, and the reason is logged once.
func (t *TokenFile) currentRecords() []tokenRecord {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.now(); now.Sub(t.checkedAt) >= reloadInterval {
		t.checkedAt = now
		t.reload()
	}
	return t.records
}

func (t *TokenFile) reload() {
	data, err := readTokenFile(t.path)
	if err == nil && bytes.Equal(data, t.data) {
		t.lastError = ""
		return
	}
	var entries []tokenRecord
	if err == nil {
		entries, err = parseTokenFile(t.path, data)
	}
	if err != nil {
		if t.lastError != err.Error() {
			t.log.Error("the tokens file is broken, its last good version stays in use", zap.Error(err))
		}
		t.lastError = err.Error()
		return
	}
	t.data, t.records, t.lastError = data, entries, ""
	t.log.Info("tokens read again", zap.String("file", t.path), zap.Int("tokens", len(entries)))
}

// readTokenFile returns the content of the file, and refuses one that others than its
// owner may write.
func readTokenFile(path string) ([]byte, error) {
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
	data, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read the tokens file: %w", err)
	}
	if len(data) > maxFileBytes {
		return nil, fmt.Errorf("the tokens file %s is larger than %d bytes", path, maxFileBytes)
	}
	return data, nil
}

// parseTokenFile returns the tokens of a file, or an error with everything that is
// wrong with it.
func parseTokenFile(path string, data []byte) ([]tokenRecord, error) {
	var file struct {
		Tokens []tokenEntry `yaml:"tokens"`
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("tokens file %s: %w", path, err)
	}
	var (
		entries []tokenRecord
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
		entries = append(entries, tokenRecord{hash: sum, principal: &Principal{Name: e.Name, Source: SourceToken, Grants: []Grant{{Role: e.Role, Clusters: e.Clusters}}}})
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("tokens file %s: %s", path, strings.Join(faults, "; "))
	}
	return entries, nil
}

// reloadInterval is how long the tokens are used before the file is checked again. It
// is checked by a request, not by a watcher, so that a removed token is refused on a
// cordoned server too.
const reloadInterval = time.Second
