package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"
)

// maxSize bounds the file, in bytes: thousands of clusters fit.
const maxSize = 1 << 20

// Load reads a configuration: strict, environment expanded, paths resolved,
// defaults applied, validated. Its error is an *Error that lists all faults, or
// says that there is no such file.
func Load(path string) (*Config, error) {
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	return load(path, data)
}

func read(path string) ([]byte, error) {
	file, err := os.Open(path) // #nosec G304 -- the operator's own path
	if errors.Is(err, fs.ErrNotExist) {
		return nil, missing(path, fs.ErrNotExist)
	}
	if err != nil {
		return nil, fmt.Errorf("open configuration: %w", err)
	}
	defer func() { _ = file.Close() }() // only read from
	data, err := io.ReadAll(io.LimitReader(file, maxSize+1))
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	if len(data) > maxSize {
		return nil, fmt.Errorf("configuration %s is larger than %d bytes", path, maxSize)
	}
	return data, nil
}

func load(path string, data []byte) (*Config, error) {
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("find the directory of %s: %w", path, err)
	}
	cfg, lines, faults := decode(data, os.LookupEnv)
	if len(lines) == 0 && len(faults) > 0 { // no tree to look at
		return nil, faultsError(path, faults)
	}
	unread := map[string]bool{} // a value that could not be read is not judged as well
	for _, f := range faults {
		unread[f.Path] = true
	}
	var found []Fault
	for i := range cfg.Clusters {
		found = append(found, resolvePaths(&cfg.Clusters[i], fmt.Sprintf("clusters[%d]", i), dir)...)
	}
	found = append(found, resolveGatewayPaths(&cfg.Gateway, dir)...)
	found = append(found, cfg.check()...)
	for _, f := range found {
		if !unread[f.Path] {
			f.Line = lineOf(lines, f.Path)
			faults = append(faults, f)
		}
	}
	if err := faultsError(path, faults); err != nil {
		return nil, err
	}
	for i, cluster := range cfg.Clusters {
		cfg.Clusters[i] = cluster.WithDefaults()
	}
	cfg.Gateway = cfg.Gateway.WithDefaults()
	return cfg, nil
}

// lineOf is the line of a path, or of the nearest thing around it that is in the file.
func lineOf(lines map[string]int, path string) int {
	for path != "" {
		if line, ok := lines[path]; ok {
			return line
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	return lines[""]
}

// Cluster is the cluster of that name; the error names those that there are.
func (c *Config) Cluster(name string) (Cluster, error) {
	known := make([]string, 0, len(c.Clusters))
	for _, cluster := range c.Clusters {
		if cluster.Name == name {
			return cluster, nil
		}
		known = append(known, cluster.Name)
	}
	slices.Sort(known)
	return Cluster{}, fmt.Errorf("no cluster %q in the configuration, only %s%s", brief(name), strings.Join(known, ", "), hint(name, known))
}

// File is a configuration file that is read again when it changes.
type File struct {
	path string

	mu     sync.Mutex
	log    *zap.Logger
	data   []byte  // the version last looked at, good or not
	config *Config // the last good version
	fault  error   // why the version last looked at is not in use
}

// Open reads the configuration for the first time; it must be good.
func Open(path string) (*File, error) {
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	cfg, err := load(path, data)
	if err != nil {
		return nil, err
	}
	return &File{path: path, log: zap.NewNop(), data: data, config: cfg}, nil
}

// WithLogger sets where a change of the file is logged, good or broken, once each. It returns f.
func (f *File) WithLogger(log *zap.Logger) *File {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = log
	return f
}

// Path is the file's path, as it was given to Open.
func (f *File) Path() string { return f.path }

// Current is the configuration as the file is now. When the file has become
// unreadable or wrong, the last good configuration stays in use and Fault says
// why. The result is shared: it must not be changed. The error is for a File
// that did not come from Open.
func (f *File) Current() (*Config, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.config == nil {
		return nil, errors.New("configuration was never opened")
	}
	f.refresh()
	return f.config, nil
}

// Fault is why the file as it is now is not in use; nil when it is.
func (f *File) Fault() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.config != nil {
		f.refresh()
	}
	return f.fault
}

// refresh compares contents, not times: two writes within one tick of the file
// system's clock are told apart, and the file is a few kilobytes.
func (f *File) refresh() {
	data, err := read(f.path)
	if err != nil {
		f.keep(err)
		f.data = nil
		return
	}
	if f.data != nil && bytes.Equal(data, f.data) {
		return
	}
	f.data = data
	cfg, err := load(f.path, data)
	if err != nil {
		f.fault = nil // another version: its faults are news even if they are the same
		f.keep(err)
		return
	}
	f.config, f.fault = cfg, nil
	f.log.Info("configuration read again", zap.String("file", f.path), zap.Int("clusters", len(cfg.Clusters)))
}

// keep stays with the last good configuration and logs why, once.
func (f *File) keep(err error) {
	if f.fault == nil || f.fault.Error() != err.Error() {
		f.log.Error("configuration is broken, the last good one stays in use", zap.String("file", f.path), zap.Error(err))
	}
	f.fault = err
}
