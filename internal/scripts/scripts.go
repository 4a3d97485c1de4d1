// Package scripts holds the upgrade scripts that Ebb ships and finds those that
// its users bring.
//
// A script runs on a node, as root, detached (internal/nodessh). It is told what
// to do by EBB_* variables and answers with its exit code: 0 is done, 75 asks for
// a retry, anything else fails the node. It must be idempotent.
package scripts

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sort"
	"strings"
)

// ExitRetry is the exit code by which a script asks to be run again later
// (EX_TEMPFAIL of sysexits.h).
const ExitRetry = 75

//go:embed *.sh
var shipped embed.FS

// Names lists the shipped scripts, sorted.
func Names() []string {
	entries, err := shipped.ReadDir(".")
	if err != nil {
		panic(err) // the embedded root is always readable
	}
	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, strings.TrimSuffix(entry.Name(), ".sh"))
	}
	sort.Strings(names)
	return names
}

// Load returns a shipped script by its name, or the file at a path: whatever
// holds a slash is a path. The error for an unknown name lists the shipped ones.
func Load(nameOrPath string) ([]byte, error) {
	if strings.ContainsRune(nameOrPath, os.PathSeparator) {
		script, err := os.ReadFile(nameOrPath) // #nosec G304 -- the path is configuration
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("upgrade script %s is not on this worker (shipped scripts: %s): %w",
				nameOrPath, strings.Join(Names(), ", "), err)
		case err != nil:
			return nil, fmt.Errorf("read upgrade script: %w", err)
		case len(strings.TrimSpace(string(script))) == 0:
			return nil, fmt.Errorf("upgrade script %s is empty", nameOrPath)
		}
		return script, nil
	}
	script, err := shipped.ReadFile(nameOrPath + ".sh")
	if err != nil {
		return nil, fmt.Errorf("there is no upgrade script %q: use one of %s, or a path",
			nameOrPath, strings.Join(Names(), ", "))
	}
	return script, nil
}
