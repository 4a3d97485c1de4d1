// Command sandbox-node stands in for the tools of a sandbox node: kubeadm,
// kubelet, apt-get and others, by the name it is called with. They print what
// the real ones print in outline, keep their state in the node's directory, and
// change the node in the real API server. `sandbox-node infra DIR` is the
// infrastructure command of the sandbox in DIR.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"ebb/internal/sandbox/nodefs"
)

// tool is one stand-in; the result is its exit code.
type tool func(n node, args []string) int

var tools = map[string]tool{
	"sudo":        sudo,
	"cat":         cat,
	"df":          df,
	"systemctl":   systemctl,
	"systemd-run": noSystemd,
	"apt-get":     aptGet,
	"apt-cache":   aptCache,
	"apt-mark":    aptMark,
	"apt-config":  aptConfig,
	"dpkg":        dpkg,
	"dpkg-query":  dpkgQuery,
	"dpkg-deb":    dpkgDeb,
	"kubeadm":     kubeadm,
	"kubelet":     kubelet,
	"crictl":      pulled,
	"ctr":         pulled,
}

// quiet tools change nothing and are not worth a line in the journal.
var quiet = map[string]bool{"sudo": true, "cat": true, "df": true, "apt-config": true, "dpkg-query": true, "systemd-run": true}

// node is the node that a stand-in runs on.
type node struct {
	nodefs.Dir
	info   nodefs.Info
	faults nodefs.Faults
}

func main() {
	name, args := filepath.Base(os.Args[0]), os.Args[1:]
	if len(args) == 2 && args[0] == "infra" {
		os.Exit(infra(args[1]))
	}
	run, ok := tools[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "%s: usage: sandbox-node infra DIR, or a link named like the tool to stand in for\n", name)
		os.Exit(2)
	}
	n, err := here()
	if err == nil && !quiet[name] {
		err = n.journal(name, args)
	}
	if err != nil {
		os.Exit(fail(name, err))
	}
	os.Exit(run(n, args))
}

// here reads the node that the process runs on.
func here() (n node, err error) {
	if n.Dir, err = nodefs.Current(); err != nil {
		return n, err
	}
	if n.info, err = n.Info(); err != nil {
		return n, err
	}
	n.faults, err = n.Faults()
	return n, err
}

// journal appends what is being run, in one write so that lines do not mix.
func (n node) journal(name string, args []string) (err error) {
	f, err := os.OpenFile(n.Journal(), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	line := strings.ReplaceAll(strings.Join(append([]string{name}, args...), " "), "\n", " ")
	_, err = fmt.Fprintf(f, "%s %s\n", time.Now().UTC().Format(time.RFC3339Nano), line)
	return err
}

// fail prints an error the way most tools do.
func fail(name string, err error) int {
	fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	return 1
}
