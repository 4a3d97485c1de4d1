package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// fileName is the configuration's name wherever it is looked for.
const fileName = "ebb.yaml"

// Path is where the configuration is: the flag, else EBB_CONFIG, else ./ebb.yaml
// if there is one, else $XDG_CONFIG_HOME/ebb/ebb.yaml (~/.config/ebb/ebb.yaml).
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
	if user := userPath(); user != "" {
		return user
	}
	return fileName
}

// userPath is the user's own configuration file, or "" for a process without a home.
func userPath() string {
	if dir := os.Getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) { // a relative one is to be ignored
		return filepath.Join(dir, "ebb", fileName)
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".config", "ebb", fileName)
}

// missing is the error for a file that is not there; it says where Path has looked.
func missing(path string, cause error) error {
	const advice = "name one with --config or EBB_CONFIG"
	if path == userPath() && os.Getenv("EBB_CONFIG") == "" {
		return fmt.Errorf("no configuration: looked for ./%s and %s; %s: %w", fileName, path, advice, cause)
	}
	return fmt.Errorf("no configuration at %s; %s: %w", path, advice, cause)
}

// resolver makes paths absolute and collects what is wrong with them.
type resolver struct {
	at, dir string
	faults  []Fault
}

func (r *resolver) resolve(key string, value *string) {
	resolved, err := resolvePath(*value, r.dir)
	if err != nil {
		r.faults = append(r.faults, Fault{Path: join(r.at, key), Text: err.Error()})
		return
	}
	*value = resolved
}

// resolvePaths makes the paths that the worker opens absolute: ~ is the home
// directory, relative is relative to the file's directory. Paths on the nodes
// (runDir, bundleDir) stay.
func resolvePaths(c *Cluster, at, dir string) []Fault {
	r := &resolver{at: at, dir: dir}
	r.resolve("kubeconfig", &c.Kubeconfig)
	r.resolve("ssh.identityFile", &c.SSH.IdentityFile)
	r.resolve("ssh.certificateFile", &c.SSH.CertificateFile)
	r.resolve("ssh.passphraseFile", &c.SSH.PassphraseFile)
	r.resolve("ssh.knownHosts", &c.SSH.KnownHosts)
	r.resolve("infrastructure.credentialsFile", &c.Infrastructure.CredentialsFile)
	r.resolve("infrastructure.caFile", &c.Infrastructure.CAFile)
	if isPath(c.Upgrade.Script) {
		r.resolve("upgrade.script", &c.Upgrade.Script)
	}
	if command := c.Infrastructure.Command; len(command) > 0 && isPath(command[0]) {
		r.resolve("infrastructure.command[0]", &command[0])
	}
	return r.faults
}

// resolveGatewayPaths does the same for the gateway's.
func resolveGatewayPaths(g *Gateway, dir string) []Fault {
	r := &resolver{at: "gateway", dir: dir}
	r.resolve("tokensFile", &g.TokensFile)
	r.resolve("endpoints.clientCAFile", &g.Endpoints.ClientCAFile)
	r.resolve("tls.certificateFile", &g.TLS.CertificateFile)
	r.resolve("tls.keyFile", &g.TLS.KeyFile)
	return r.faults
}

// isPath tells a path from the name of a shipped script or of a program in $PATH.
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
