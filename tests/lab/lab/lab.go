// Package lab makes real machines on one Linux host and a kubeadm cluster on
// them: each machine has its own systemd, SSH server, containerd and kubelet, in
// namespaces and cgroups of its own, on a switch that is a network namespace.
// Nothing is downloaded but Debian packages and Go modules: what the machines
// run is built from source, packed as Debian packages and container images, and
// served to them.
//
// One lab runs on a host at a time.
package lab

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"ebb/internal/wait"
)

// The two Kubernetes versions of the lab, without v: tools/lab/previous pins the first,
// tools/sandbox the second.
const (
	From = "1.36.3"
	To   = "1.37.2"
)

// prefix is what the names of namespaces and cgroups begin with.
const prefix = "ebblab"

// Lab is a lab of this host, running or not: all of its state is in files and in
// the kernel, so that one process can start it and another stop it.
type Lab struct {
	repository string    // root of Ebb's source
	cache      string    // what is built once, .bin/lab
	run        string    // what is removed by Down
	log        io.Writer // where steps and their times are written
}

// New returns the lab of a source tree.
func New(repository string, log io.Writer) (*Lab, error) {
	repository, err := filepath.Abs(repository)
	if err != nil {
		return nil, err
	}
	cache := filepath.Join(repository, ".bin", "lab")
	return &Lab{repository: repository, cache: cache, run: filepath.Join(cache, "run"), log: log}, nil
}

// Program returns the path of a program that the lab has built: kubectl and so on are
// in a folder per version.
func (l *Lab) Program(elements ...string) string {
	return filepath.Join(append([]string{l.cache, "bin"}, elements...)...)
}

// Path returns a path in the folder that Down removes.
func (l *Lab) Path(elements ...string) string {
	return filepath.Join(append([]string{l.run}, elements...)...)
}

// step says what is done and, by the function it returns, how long it took.
func (l *Lab) step(format string, args ...any) (done func()) {
	what, began := fmt.Sprintf(format, args...), time.Now()
	_, _ = fmt.Fprintf(l.log, "lab: %s ...\n", what)
	return func() { _, _ = fmt.Fprintf(l.log, "lab: %s: %.1f s\n", what, time.Since(began).Seconds()) }
}

// command runs a program to its end and returns what it printed on stdout.
func command(ctx context.Context, name string, args ...string) (string, error) {
	return commandWithInput(ctx, "", name, args...)
}

// commandWithInput runs a program with a text on its stdin. An error has the end of stderr.
func commandWithInput(ctx context.Context, text, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...) // #nosec G204 -- the lab's own command lines
	var stdout, stderr strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(text), &stdout, &stderr
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, ending(stderr.String()+stdout.String()))
	}
	return stdout.String(), nil
}

// ending returns the end of an output, for an error.
func ending(text string) string {
	const most = 2000
	text = strings.TrimSpace(text)
	return text[max(0, len(text)-most):]
}

// write makes a file, and the folders it is in.
func write(path, content string, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { // #nosec G301 -- machines read it as other users
		return err
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		return err
	}
	return os.Chmod(path, mode) // whatever the umask is
}

// read returns the content of a file without white space around it.
func read(path string) (string, error) {
	content, err := os.ReadFile(path) // #nosec G304 -- the lab's own files
	return strings.TrimSpace(string(content)), err
}

// pollUntil asks until the answer is yes or ctx ends; then the last error is told.
func pollUntil(ctx context.Context, what string, ask func() error) error {
	var last error
	err := wait.Poll(ctx, 200*time.Millisecond, func() (bool, error) { last = ask(); return last == nil, nil })
	if err != nil {
		return fmt.Errorf("%s: %w: %w", what, err, last)
	}
	return nil
}
