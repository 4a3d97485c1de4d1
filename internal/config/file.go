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

// Load returns the configuration in a file: decoded strictly, with environment
// variables expanded, paths resolved, defaults applied, and validated. The error is a
// *ValidationError with everything that is wrong, or about reading the file.
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
		return nil, notFoundError(path, fs.ErrNotExist)
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
	cfg, lines, errs := decode(data, os.LookupEnv)
	if len(lines) == 0 && len(errs) > 0 { // not YAML
		return nil, asError(path, errs)
	}
	undecoded := map[string]bool{} // values with an error already, which are not validated
	for _, f := range errs {
		undecoded[f.Path] = true
	}
	var found []FieldError
	for i := range cfg.Clusters {
		found = append(found, resolvePaths(&cfg.Clusters[i], fmt.Sprintf("clusters[%d]", i), dir)...)
	}
	found = append(found, resolveGatewayPaths(&cfg.Gateway, dir)...)
	found = append(found, cfg.validate()...)
	for _, f := range found {
		if !undecoded[f.Path] {
			f.Line = lineOf(lines, f.Path)
			errs = append(errs, f)
		}
	}
	if err := asError(path, errs); err != nil {
		return nil, err
	}
	for i, cluster := range cfg.Clusters {
		cfg.Clusters[i] = cluster.WithDefaults()
	}
	cfg.Gateway = cfg.Gateway.WithDefaults()
	return cfg, nil
}

// lineOf returns the line of a path or, when it is not in the file, of its closest parent.
func lineOf(lines map[string]int, path string) int {
	for path != "" {
		if line, ok := lines[path]; ok {
			return line
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	return lines[""]
}

// ClusterNames returns the names of all clusters, in the order of the file.
func (c *Config) ClusterNames() []string {
	names := make([]string, len(c.Clusters))
	for i, cluster := range c.Clusters {
		names[i] = cluster.Name
	}
	return names
}

// Cluster returns the cluster with a name; the error lists the names that exist.
func (c *Config) Cluster(name string) (Cluster, error) {
	for _, cluster := range c.Clusters {
		if cluster.Name == name {
			return cluster, nil
		}
	}
	known := c.ClusterNames()
	slices.Sort(known)
	return Cluster{}, fmt.Errorf("no cluster %q in the configuration, only %s%s", shorten(name), strings.Join(known, ", "), didYouMean(name, known))
}

// File is a configuration file that is loaded again when it changes.
type File struct {
	path string

	mu      sync.Mutex
	log     *zap.Logger
	data    []byte  // content that was loaded last, valid or not
	config  *Config // last valid configuration
	loadErr error   // why the content that was loaded last is not in use
}

// Open loads the configuration for the first time; it has to be valid.
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

// WithLogger sets the logger for changes of the file, valid or not, and returns f.
func (f *File) WithLogger(log *zap.Logger) *File {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = log
	return f
}

// Path returns the path that was given to Open.
func (f *File) Path() string { return f.path }

// Current returns the configuration in the file now. When the file cannot be read or is
// not valid any more, it returns the last valid configuration, and LoadError returns
// why. The result is shared and must not be changed. The error is for a File that did
// not come from Open.
func (f *File) Current() (*Config, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.config == nil {
		return nil, errors.New("configuration was never opened")
	}
	f.reload()
	return f.config, nil
}

// LoadError returns why the file's content is not in use now; nil when it is.
func (f *File) LoadError() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.config != nil {
		f.reload()
	}
	return f.loadErr
}

// reload loads the file if it has changed. It compares contents, not modification
// times, which can be equal for two writes; the file has a few kilobytes.
func (f *File) reload() {
	data, err := read(f.path)
	if err != nil {
		f.keepLastGood(err)
		f.data = nil
		return
	}
	if f.data != nil && bytes.Equal(data, f.data) {
		return
	}
	f.data = data
	cfg, err := load(f.path, data)
	if err != nil {
		f.loadErr = nil // another content: its errors are logged even if they are the same
		f.keepLastGood(err)
		return
	}
	f.config, f.loadErr = cfg, nil
	f.log.Info("configuration read again", zap.String("file", f.path), zap.Int("clusters", len(cfg.Clusters)))
}

// keepLastGood records why the file is not in use, and logs it once.
func (f *File) keepLastGood(err error) {
	if f.loadErr == nil || f.loadErr.Error() != err.Error() {
		f.log.Error("configuration is broken, the last good one stays in use", zap.String("file", f.path), zap.Error(err))
	}
	f.loadErr = err
}
