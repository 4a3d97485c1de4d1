package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// fileName is the name of the configuration file in each directory that is searched.
const fileName = "ebb.yaml"

// Path returns the path of the configuration: the flag, else EBB_CONFIG, else
// ./ebb.yaml if it exists, else $XDG_CONFIG_HOME/ebb/ebb.yaml (~/.config/ebb/ebb.yaml).
func Path(flag string) string {
	if flag != "" {
		return flag
	}
	if env := os.Getenv("EBB_CONFIG"); env != "" {
		return env
	}
	if _, err := os.Stat(fileName); err == nil {
		return fileName
	}
	if user := userConfigPath(); user != "" {
		return user
	}
	return fileName
}

// userConfigPath returns the user's configuration file, or "" without a home directory.
func userConfigPath() string {
	if dir := os.Getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) { // a relative one is to be ignored
		return filepath.Join(dir, "ebb", fileName)
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".config", "ebb", fileName)
}

// notFoundError returns the error for a missing file, with the places that Path searches.
func notFoundError(path string, cause error) error {
	const advice = "name one with --config or EBB_CONFIG"
	if path == userConfigPath() && os.Getenv("EBB_CONFIG") == "" {
		return fmt.Errorf("no configuration: looked for ./%s and %s; %s: %w", fileName, path, advice, cause)
	}
	return fmt.Errorf("no configuration at %s; %s: %w", path, advice, cause)
}

// pathResolver makes paths absolute and collects the errors.
type pathResolver struct {
	path, dir string
	errs      []FieldError
}

func (r *pathResolver) resolve(key string, value *string) {
	resolved, err := resolvePath(*value, r.dir)
	if err != nil {
		r.errs = append(r.errs, FieldError{Path: join(r.path, key), Message: err.Error()})
		return
	}
	*value = resolved
}

// resolvePaths makes the paths that the worker opens absolute: ~ is the home
// directory, relative is relative to the file's directory. Paths on the nodes
// (runDir, bundleDir) stay.
func resolvePaths(c *Cluster, at, dir string) []FieldError {
	r := &pathResolver{path: at, dir: dir}
	r.resolve("kubeconfig", &c.Kubeconfig)
	r.resolve("ssh.identityFile", &c.SSH.IdentityFile)
	r.resolve("ssh.certificateFile", &c.SSH.CertificateFile)
	r.resolve("ssh.passphraseFile", &c.SSH.PassphraseFile)
	r.resolve("ssh.knownHosts", &c.SSH.KnownHosts)
	r.resolve("tunnel.caFile", &c.Tunnel.CAFile)
	r.resolve("tunnel.certificateFile", &c.Tunnel.CertificateFile)
	r.resolve("tunnel.keyFile", &c.Tunnel.KeyFile)
	r.resolve("tunnel.socket", &c.Tunnel.Socket)
	r.resolve("infrastructure.credentialsFile", &c.Infrastructure.CredentialsFile)
	r.resolve("infrastructure.caFile", &c.Infrastructure.CAFile)
	if isPath(c.Upgrade.Script) {
		r.resolve("upgrade.script", &c.Upgrade.Script)
	}
	if command := c.Infrastructure.Command; len(command) > 0 && isPath(command[0]) {
		r.resolve("infrastructure.command[0]", &command[0])
	}
	return r.errs
}

// resolveGatewayPaths does the same for the paths of the gateway.
func resolveGatewayPaths(g *Gateway, dir string) []FieldError {
	r := &pathResolver{path: "gateway", dir: dir}
	r.resolve("tokensFile", &g.TokensFile)
	r.resolve("endpoints.clientCAFile", &g.Endpoints.ClientCAFile)
	r.resolve("tunnel.clientCAFile", &g.Tunnel.ClientCAFile)
	r.resolve("tls.certificateFile", &g.TLS.CertificateFile)
	r.resolve("tls.keyFile", &g.TLS.KeyFile)
	return r.errs
}

// isPath reports whether name is a path, and not the name of a shipped script or of a
// program in $PATH.
func isPath(name string) bool { return strings.ContainsRune(name, '/') || strings.HasPrefix(name, "~") }

func resolvePath(path, dir string) (string, error) {
	switch {
	case path == "" || filepath.IsAbs(path):
		return path, nil
	case path == "~" || strings.HasPrefix(path, "~/"):
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("~ cannot be expanded: %w", err)
		}
		return filepath.Join(home, path[1:]), nil
	case strings.HasPrefix(path, "~"):
		return "", fmt.Errorf("~user is not expanded: write the full path")
	}
	return filepath.Join(dir, path), nil
}
