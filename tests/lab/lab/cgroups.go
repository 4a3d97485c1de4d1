package lab

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

const cgroupRoot = "/sys/fs/cgroup"

// createCgroups makes a cgroup for a machine in every hierarchy of the host, below
// one of the lab, and returns their folders.
func createCgroups(machine string) ([]string, error) {
	names, err := cgroupHierarchies()
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, name := range append(names, "unified") {
		root := filepath.Join(cgroupRoot, name)
		if _, err := os.Stat(root); errors.Is(err, fs.ErrNotExist) {
			continue // there is no unified hierarchy on some
		}
		parent, dir := filepath.Join(root, prefix), filepath.Join(root, prefix, machine)
		if err := os.MkdirAll(dir, 0o755); err != nil { // #nosec G301 -- the mode that cgroups have
			return nil, err
		}
		if name == "cpuset" { // a new one has no processors
			for _, d := range []string{parent, dir} {
				if err := inheritCpuset(d); err != nil {
					return nil, err
				}
			}
			if err := os.WriteFile(filepath.Join(dir, "cgroup.clone_children"), []byte("1"), 0o600); err != nil {
				return nil, err
			}
		}
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

func inheritCpuset(dir string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := read(filepath.Join(filepath.Dir(dir), file))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// removeCgroups removes the cgroups of a machine, or of the lab when it is "".
// They must be empty of processes.
func removeCgroups(machine string) error {
	tops, err := filepath.Glob(filepath.Join(cgroupRoot, "*", prefix, machine))
	if err != nil {
		return err
	}
	var errs []error
	for _, top := range tops {
		var dirs []string
		errs = append(errs, filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return err
		}))
		for _, dir := range slices.Backward(dirs) { // children first
			errs = append(errs, os.Remove(dir))
		}
	}
	return errors.Join(errs...)
}
