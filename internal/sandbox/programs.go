package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// programNames are the programs the sandbox runs, as tools.mk builds them.
var programNames = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok", "sandbox-node"}

// findPrograms returns the path of each of these programs by its name. Each is taken
// from the first folder that has it: the given one and no other, or EBB_SANDBOX_BIN, then
// EBB_BIN, then the folder of the running program and its .bin, then .bin of the module ebb
// around the working directory. The error names what is missing, and where.
func findPrograms(given string, names []string) (map[string]string, error) {
	folders := programFolders(given)
	if len(folders) == 0 {
		return nil, errors.New("the programs of the sandbox are not found: run `make tools`, or name their folder with EBB_SANDBOX_BIN")
	}
	programs := map[string]string{}
	var missing []string
	for _, name := range names {
		if programs[name] = findProgram(name, folders); programs[name] == "" {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("the sandbox needs %s in %s: run `make tools`", strings.Join(missing, ", "), strings.Join(folders, " or "))
	}
	return programs, nil
}

// findProgram returns the absolute path of a program, or nothing when no folder has it.
func findProgram(name string, folders []string) string {
	for _, folder := range folders {
		path, err := filepath.Abs(filepath.Join(folder, name))
		if err != nil {
			continue
		}
		// #nosec G703 -- whoever sets EBB_BIN may run what is in it
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			return path
		}
	}
	return ""
}

func programFolders(given string) []string {
	if given != "" {
		return []string{given}
	}
	folders := []string{os.Getenv("EBB_SANDBOX_BIN"), os.Getenv("EBB_BIN")}
	if self, err := os.Executable(); err == nil {
		folders = append(folders, filepath.Dir(self), filepath.Join(filepath.Dir(self), ".bin"))
	}
	if root := moduleRoot(); root != "" {
		folders = append(folders, filepath.Join(root, ".bin"))
	}
	return slices.DeleteFunc(folders, func(folder string) bool { return folder == "" })
}

// moduleRoot returns the folder of the module ebb around the working directory, or nothing.
func moduleRoot() string {
	at, err := os.Getwd()
	for err == nil {
		if data, readErr := os.ReadFile(filepath.Join(at, "go.mod")); readErr == nil && strings.HasPrefix(string(data), "module ebb\n") { // #nosec G304 -- a go.mod above the working directory
			return at
		}
		if at == filepath.Dir(at) {
			break
		}
		at = filepath.Dir(at)
	}
	return ""
}
