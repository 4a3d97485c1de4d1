package nodetools

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"ebb/internal/sandbox/nodedir"
)

// kubernetesPrograms are in /opt/bin of a node that CloudStack's Kubernetes service has made.
var kubernetesPrograms = []string{"kubeadm", "kubectl", "kubelet"}

// LayOutCKS lays a node out as CloudStack's Kubernetes service does: kubeadm, kubelet and
// kubectl of a version in /opt/bin, and no package manager. program is this one, the
// programs of a sandbox node.
func LayOutCKS(d nodedir.Dir, version, program string) error {
	for name := range tools {
		if slices.Contains(kubernetesPrograms, name) || strings.HasPrefix(name, "apt-") || strings.HasPrefix(name, "dpkg") {
			if err := nodedir.Unmark(filepath.Join(d.Bin(), name)); err != nil {
				return err
			}
		}
	}
	if err := os.RemoveAll(d.Opt()); err != nil {
		return err
	}
	return writeKubernetes(d.Opt("bin"), version, program, 0o755)
}

// writeKubernetes writes programs that behave like those of a version into a directory.
func writeKubernetes(dir, version, program string, mode os.FileMode) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { // #nosec G301 -- as on a node
		return err
	}
	for _, name := range kubernetesPrograms {
		text := fmt.Sprintf("#!/bin/sh\n%s exec '%s' %s %s \"$@\"\n", AsVersion(version), program, toolWord, name)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			return err
		}
	}
	return nil
}

// toolWord is the first argument of a call that names the program in the second one.
const toolWord = "tool"

// Named returns the program that a command line means, and its arguments: by the name of
// the command, or by the second word after "tool".
func Named(argv []string) (name string, args []string) {
	if len(argv) > 2 && argv[1] == toolWord {
		return argv[2], argv[3:]
	}
	return filepath.Base(argv[0]), argv[1:]
}

var versionOfProgram = regexp.MustCompile(`(?m)^` + versionVariable + `=(\S+) `)

// optVersion returns the version of a program in /opt/bin, "" when it is not there.
func (n node) optVersion(name string) (string, error) {
	text, err := os.ReadFile(n.Opt("bin", name))
	switch found := versionOfProgram.FindStringSubmatch(string(text)); {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", err
	case found == nil:
		return "", fmt.Errorf("%s is not a program of the sandbox", n.Opt("bin", name))
	default:
		return found[1], nil
	}
}

// kubectl answers `kubectl version`; everything else is the real one, which finds at
// /etc/kubernetes/admin.conf what the node has there.
func kubectl(n node, args []string) int {
	if len(args) > 0 && args[0] == "version" {
		version, err := n.version("kubectl")
		if err != nil {
			return fail("kubectl", err)
		}
		fmt.Printf("Client Version: v%s\n", version)
		return 0
	}
	if n.info.Kubectl == "" {
		return fail("kubectl", errors.New("this node has no real one"))
	}
	argv := []string{"kubectl"}
	for _, arg := range args {
		if arg == "/etc/kubernetes/admin.conf" {
			arg = n.info.Kubeconfig
		}
		argv = append(argv, arg)
	}
	// #nosec G204 G702 -- the sandbox's own kubectl
	return fail("kubectl", syscall.Exec(n.info.Kubectl, argv, os.Environ()))
}
