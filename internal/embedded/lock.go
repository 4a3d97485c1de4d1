package embedded

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// lockDir locks the state directory for this process, with flock: the lock ends with the
// process, however that ends. The error names the process that has it.
func lockDir(dir string) (*os.File, error) {
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600) // #nosec G304 -- the state directory is configuration
	if err != nil {
		return nil, fmt.Errorf("state directory %s: %w: make it writable for this user, or choose another directory with --state-dir", dir, err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		holder, _ := io.ReadAll(io.LimitReader(f, 20)) // only for the message
		_ = f.Close()                                  // nothing was written
		return nil, fmt.Errorf("the engine's file in %s is in use by process %s: stop that one, or choose another directory with --state-dir",
			dir, strings.TrimSpace(string(holder)))
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	if err != nil {
		_ = f.Close() // the first error counts
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

func unlockDir(f *os.File) {
	_ = f.Close() // closing is what unlocks
}
