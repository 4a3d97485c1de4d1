// Package nodetools are the programs of a sandbox node: fakes of kubeadm, kubelet,
// apt-get and others. They print what the real ones print in outline, keep their
// state in the node's directory (nodedir), and change the node in the real API
// server. What the shipped scripts do not call is not there. Standard library only,
// so that the programs start fast.
package nodetools

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"ebb/internal/sandbox/nodedir"
)

// tool is one program; the result is its exit code.
type tool func(n node, args []string) int

var tools = map[string]tool{
	"sudo":        sudo,
	"cat":         cat,
	"df":          df,
	"systemctl":   systemctl,
	"systemd-run": noSystemd,
	"journalctl":  journalctl,
	"apt-get":     aptGet,
	"apt-cache":   aptCache,
	"apt-mark":    aptMark,
	"apt-config":  aptConfig,
	"dpkg":        dpkg,
	"dpkg-query":  dpkgQuery,
	"dpkg-deb":    dpkgDeb,
	"kubeadm":     kubeadm,
	"kubelet":     kubelet,
	"kubectl":     kubectl,
	"blkid":       blkid,
	"mount":       mount,
	"umount":      umount,
	"eject":       eject,
	"crictl":      pullImage,
	"ctr":         pullImage,
}

// unrecorded tools change nothing and are not worth a line in the journal.
var unrecorded = map[string]bool{"sudo": true, "cat": true, "df": true, "apt-config": true, "dpkg-query": true, "systemd-run": true, "journalctl": true, "blkid": true}

// Names returns the names of all programs, sorted.
func Names() []string { return slices.Sorted(maps.Keys(tools)) }

// Main runs the program of that name on the node whose bin folder is on PATH, and
// returns its exit code.
func Main(name string, args []string) int {
	run, ok := tools[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "%s is not a program of a sandbox node: call it by the name of one of %s\n", name, strings.Join(Names(), ", "))
		return 2
	}
	n, err := currentNode()
	if err == nil && !unrecorded[name] {
		err = n.record(name, args)
	}
	if err != nil {
		return fail(name, err)
	}
	return run(n, args)
}

// node is the node that a program runs on.
type node struct {
	nodedir.Dir
	info   nodedir.Info
	faults nodedir.Faults
}

// currentNode reads the node that the process runs on.
func currentNode() (n node, err error) {
	if n.Dir, err = nodedir.Current(); err != nil {
		return n, err
	}
	if n.info, err = n.Info(); err != nil {
		return n, err
	}
	n.faults, err = n.Faults()
	return n, err
}

// record appends what is being run to the journal, in one write so that lines do not mix.
func (n node) record(name string, args []string) (err error) {
	f, err := os.OpenFile(n.Journal(), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	line := strings.ReplaceAll(strings.Join(append([]string{name}, args...), " "), "\n", " ")
	_, err = fmt.Fprintf(f, "%s %s\n", time.Now().UTC().Format(time.RFC3339Nano), line)
	return err
}

// fail prints an error the way most programs do and returns their exit code.
func fail(name string, err error) int {
	fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	return 1
}
