package infra

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
)

// maxCredentialsSize bounds the file, in bytes: two keys take some 200.
const maxCredentialsSize = 64 << 10

// credentials are the keys that sign API requests.
type credentials struct{ apiKey, secretKey string }

// redact returns text with the keys replaced.
func (c credentials) redact(text string) string {
	return strings.NewReplacer(c.apiKey, "[apiKey]", c.secretKey, "[secretKey]").Replace(text)
}

// readCredentials reads apiKey and secretKey from a file. Its errors never quote the
// content.
func readCredentials(path string) (credentials, error) {
	data, err := readSecret(path)
	if err != nil {
		return credentials{}, fmt.Errorf("infrastructure.credentialsFile %s: %w", path, err)
	}
	keys, err := parseCredentials(data)
	if err != nil {
		return credentials{}, fmt.Errorf("infrastructure.credentialsFile %s: %w", path, err)
	}
	return keys, nil
}

// readSecret returns the content of a file. It fails when others may read it (mode &
// 077); a file of another user, such as a mounted secret, may be readable by the group.
func readSecret(path string) ([]byte, error) {
	file, err := os.Open(path) // #nosec G304 -- the operator's own path
	if err != nil {
		return nil, pathErrorCause(err)
	}
	defer func() { _ = file.Close() }() // only read from
	info, err := file.Stat()
	if err != nil {
		return nil, pathErrorCause(err)
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a file")
	}
	forbidden := os.FileMode(0o077)
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && int(owner.Uid) != os.Getuid() {
		forbidden = 0o007
	}
	if mode := info.Mode().Perm(); mode&forbidden != 0 {
		return nil, fmt.Errorf("its mode %#o lets others read it: chmod 600 it", mode)
	}
	data, err := io.ReadAll(io.LimitReader(file, maxCredentialsSize+1))
	if err != nil {
		return nil, pathErrorCause(err)
	}
	if len(data) > maxCredentialsSize {
		return nil, fmt.Errorf("it is larger than %d bytes", maxCredentialsSize)
	}
	return data, nil
}

// pathErrorCause returns a file error without its path, which the caller adds.
func pathErrorCause(err error) error {
	var at *os.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}

// parseCredentials parses a JSON object or lines of key=value.
func parseCredentials(data []byte) (credentials, error) {
	var (
		found map[string]string
		err   error
	)
	data = bytes.TrimSpace(data)
	if bytes.HasPrefix(data, []byte("{")) {
		err = json.Unmarshal(data, &found)
		if err != nil { // the library's error may quote the file
			return credentials{}, errors.New(`it must be a JSON object of two texts: {"apiKey": "…", "secretKey": "…"}`)
		}
	} else if found, err = parsePairs(string(data)); err != nil {
		return credentials{}, err
	}
	var keys credentials
	for name, value := range found {
		// api-key and api_key, as other tools of CloudStack write it, are the same.
		switch strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(name)) {
		case "apikey":
			keys.apiKey = value
		case "secretkey":
			keys.secretKey = value
		default:
			return credentials{}, errors.New("it must hold apiKey and secretKey, and nothing else")
		}
	}
	if keys.apiKey == "" || keys.secretKey == "" {
		return credentials{}, errors.New("apiKey and secretKey are both required")
	}
	return keys, nil
}

// parsePairs parses lines of the form key=value; # begins a comment line.
func parsePairs(text string) (map[string]string, error) {
	pairs := map[string]string{}
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok {
			return nil, fmt.Errorf("line %d must be apiKey=… or secretKey=…", i+1)
		}
		name = strings.TrimSpace(name)
		if _, twice := pairs[name]; twice {
			return nil, fmt.Errorf("line %d names its key a second time", i+1)
		}
		pairs[name] = strings.TrimSpace(value)
	}
	return pairs, nil
}
