package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// binaries are the programs the sandbox runs, as tools.mk builds them.
var binaries = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok", "sandbox-node"}

// findBinaries returns the directory of the sandbox's programs: the given one, else
// EBB_BIN, else .bin beside the running program, else .bin of the module ebb
// around the working directory. The error names what is missing.
func findBinaries(given string) (string, error) {
	dir := given
	if dir == "" {
		dir = os.Getenv("EBB_BIN")
	}
	if dir != "" {
		dir, err := filepath.Abs(dir)
		if err != nil {
			return "", err
		}
		return dir, checkPrograms(dir)
	}
	var looked []string
	for _, candidate := range candidates() {
		if checkPrograms(candidate) == nil {
			return candidate, nil
		}
		looked = append(looked, candidate)
	}
	if len(looked) == 0 {
		return "", errors.New("the programs of the sandbox are not found: run `make tools`, or name their directory with EBB_BIN")
	}
	return "", checkPrograms(looked[len(looked)-1])
}

func candidates() (dirs []string) {
	if self, err := os.Executable(); err == nil {
		dirs = append(dirs, filepath.Dir(self), filepath.Join(filepath.Dir(self), ".bin"))
	}
	at, err := os.Getwd()
	for err == nil {
		if data, readErr := os.ReadFile(filepath.Join(at, "go.mod")); readErr == nil && strings.HasPrefix(string(data), "module ebb\n") { // #nosec G304 -- a go.mod above the working directory
			return append(dirs, filepath.Join(at, ".bin"))
		}
		if at == filepath.Dir(at) {
			break
		}
		at = filepath.Dir(at)
	}
	return dirs
}

// checkPrograms returns an error that names the programs missing from a directory.
func checkPrograms(dir string) error {
	var missing []string
	for _, name := range binaries {
		// #nosec G703 -- whoever sets EBB_BIN may run what is in it
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.IsDir() {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("the sandbox needs %s in %s: run `make tools`", strings.Join(missing, ", "), dir)
	}
	return nil
}
