// Package nodedir is the directory of a sandbox node, which two programs share: the
// sandbox, which makes it, and the node's own programs (nodetools), which read and
// change it. Standard library only, so that those start fast.
package nodedir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Dir is a node's own directory: the login directory of its SSH server. What
// belongs to the sandbox is in the hidden folder .sandbox of it.
type Dir string

// KubeletLabel is on a node whose kubelet lives; without it the kubelet is dead.
const KubeletLabel = "sandbox.ebb/kubelet"

// Of returns the directory of a node of the sandbox in the given directory.
func Of(sandbox, node string) Dir { return Dir(filepath.Join(sandbox, "nodes", node)) }

// InfraSocket returns the socket on which the sandbox in the given directory is told
// what its infrastructure command has done; the command answers when the sandbox has
// closed the connection. Without the socket it answers at once.
func InfraSocket(sandbox string) string { return filepath.Join(sandbox, "infra.sock") }

// Current returns the node that this process runs on: the one whose bin folder is on PATH.
func Current() (Dir, error) {
	for _, entry := range filepath.SplitList(os.Getenv("PATH")) {
		if home, ok := strings.CutSuffix(entry, "/.sandbox/bin"); ok {
			return Dir(home), nil
		}
	}
	return "", errors.New("this is a program of a sandbox node: run it through the node's SSH server")
}

// File returns a path in the hidden folder.
func (d Dir) File(elem ...string) string {
	return filepath.Join(append([]string{string(d), ".sandbox"}, elem...)...)
}

// Bin returns the folder of the node's own programs; it is first on its PATH.
func (d Dir) Bin() string { return d.File("bin") }

// Sources returns apt's sources.list.d of the node.
func (d Dir) Sources() string { return d.File("apt", "sources.list.d") }

// Archives returns apt's cache of downloaded packages.
func (d Dir) Archives() string { return d.File("apt", "archives") }

// Opt returns the directory that is /opt on the node.
func (d Dir) Opt(elem ...string) string { return d.File(append([]string{"opt"}, elem...)...) }

// Kubernetes returns the directory that is /etc/kubernetes on the node.
func (d Dir) Kubernetes() string { return d.File("kubernetes") }

// Journal returns the file of the commands that ran on the node: one a line, time first.
func (d Dir) Journal() string { return d.File("journal.log") }

// KubeletLog returns the file of what the kubelet has written.
func (d Dir) KubeletLog() string { return d.File("kubelet.log") }

// Commands returns the commands of the journal, oldest first; none when there is no
// journal yet.
func (d Dir) Commands() ([]string, error) {
	data, err := os.ReadFile(d.Journal())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var commands []string
	for line := range strings.Lines(string(data)) {
		if _, command, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			commands = append(commands, command)
		}
	}
	return commands, nil
}

// MachineID returns the file that is /etc/machine-id on the node.
func (d Dir) MachineID() string { return d.File("machine-id") }

// Destroyed returns a marker file, which exists when the machine is gone for good.
func (d Dir) Destroyed() string { return d.File("destroyed") }

// Stopped returns a marker file, which exists when the machine is off.
func (d Dir) Stopped() string { return d.File("stopped") }

// Info is what a node knows of itself and of its cluster.
type Info struct {
	Name         string        `json:"name"`
	Sandbox      string        `json:"sandbox"` // directory of the sandbox
	ControlPlane bool          `json:"controlPlane"`
	MachineID    string        `json:"machineID"` // as registered with the cluster
	API          string        `json:"api"`       // URL of the kube-apiserver
	CA           string        `json:"ca"`        // PEM files
	Kubelet      KeyPair       `json:"kubelet"`
	Admin        KeyPair       `json:"admin"` // control planes only, like /etc/kubernetes/admin.conf
	ScriptDelay  time.Duration `json:"scriptDelay"`

	CKS        bool   `json:"cks,omitempty"`        // laid out as CloudStack's Kubernetes service does, with its programs in /opt/bin
	Kubectl    string `json:"kubectl,omitempty"`    // CKS: path of the real one
	Kubeconfig string `json:"kubeconfig,omitempty"` // CKS: what a control plane has as /etc/kubernetes/admin.conf
}

// KeyPair are the PEM files of a client certificate.
type KeyPair struct {
	Cert string `json:"cert"`
	Key  string `json:"key"`
}

// Faults are what goes wrong on a node until it is taken back.
type Faults struct {
	Exit         int           `json:"exit,omitempty"`         // kubeadm upgrade fails with it
	Hang         bool          `json:"hang,omitempty"`         // kubeadm upgrade does not end while this is set
	Slow         time.Duration `json:"slow,omitempty"`         // added to ScriptDelay
	KubeletDies  string        `json:"kubeletDies,omitempty"`  // the kubelet ends with this line when it is started
	DiskFull     bool          `json:"diskFull,omitempty"`     // df reports next to no space
	SudoPassword bool          `json:"sudoPassword,omitempty"` // sudo asks for a password
	AptLocked    bool          `json:"aptLocked,omitempty"`    // another process holds the package manager's lock
	MirrorDown   bool          `json:"mirrorDown,omitempty"`   // the package repositories cannot be reached
	KeyExpired   bool          `json:"keyExpired,omitempty"`   // the key that signs the repositories has expired
	CoreDNS      bool          `json:"coreDNS,omitempty"`      // kubeadm upgrade apply finds plugins of CoreDNS that it does not know
	HeldBack     bool          `json:"heldBack,omitempty"`     // what the next kubelet depends on is held at an older version
}

// Create makes the directory of a new node: its programs, which are links to one,
// what it knows of itself, and the packages of a Kubernetes version.
func (d Dir) Create(info Info, version, program string, names []string) error {
	if err := os.MkdirAll(d.Bin(), 0o700); err != nil {
		return err
	}
	for _, name := range names {
		if err := os.Symlink(program, filepath.Join(d.Bin(), name)); err != nil {
			return err
		}
	}
	if err := d.WriteInfo(info); err != nil {
		return err
	}
	return d.Restore(info.MachineID, version)
}

// Restore takes all faults back, empties the drive, and gives the node its first machine
// ID and the packages of a Kubernetes version.
func (d Dir) Restore(machineID, version string) error {
	return errors.Join(d.WriteFaults(Faults{}), d.WriteDrive(Drive{}), d.WriteMachineID(machineID), d.initPackages(version))
}

// Info reads what the node knows of itself.
func (d Dir) Info() (Info, error) { return read[Info](d.File("node.json")) }

// Faults reads what goes wrong at present.
func (d Dir) Faults() (Faults, error) { return read[Faults](d.File("faults.json")) }

// WriteInfo replaces what the node knows of itself.
func (d Dir) WriteInfo(v Info) error { return write(d.File("node.json"), v) }

// WriteFaults replaces what goes wrong.
func (d Dir) WriteFaults(v Faults) error { return write(d.File("faults.json"), v) }

// WriteMachineID replaces the content of /etc/machine-id.
func (d Dir) WriteMachineID(id string) error { return replace(d.MachineID(), []byte(id+"\n")) }

// Mark makes an empty marker file; one that is there stays.
func Mark(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600) // #nosec G304 -- below the node's own directory
	if err != nil {
		return err
	}
	return f.Close()
}

// Unmark removes a marker file; one that is not there is fine.
func Unmark(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Marked reports whether a marker file is there.
func Marked(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func read[T any](path string) (T, error) {
	var v T
	data, err := os.ReadFile(path) // #nosec G304 -- below the node's own directory
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return v, fmt.Errorf("read %s: %w", path, err)
	}
	return v, nil
}

func write(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return replace(path, data)
}

// replace writes a file in one step, so that a reader sees the old or the new content.
func replace(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
